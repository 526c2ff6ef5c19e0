import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.algorithm.advantage import advantages

NAN = math.nan
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_pp")
GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo")
VARIANTS = [
    {"estimator": "grpo", "normalize": normalize, "leave_one_out": leave_one_out}
    for normalize in (True, False)
    for leave_one_out in (True, False)
] + [{"estimator": name} for name in ESTIMATORS[1:]]


def compute(rewards, groups=None, **options):
    groups = [0] * len(rewards) if groups is None else groups
    result = advantages(torch.tensor(rewards, dtype=torch.float32), torch.tensor(groups), **options)
    assert result.dtype == torch.float32
    assert result.shape == (len(rewards),)
    return result.tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"leave_one_out": False}, [1.499997, -0.499999, -0.499999, -0.499999]),
        ({"leave_one_out": False, "bessel": False, "epsilon": 1e-4}, [1.731651, -0.577217, -0.577217, -0.577217]),
        ({"leave_one_out": False, "normalize": False}, [0.75, -0.25, -0.25, -0.25]),
        ({"leave_one_out": True}, [1.0, -0.577349, -0.577349, -0.577349]),
        ({"leave_one_out": True, "normalize": False}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ({"estimator": "dr_grpo"}, [0.75, -0.25, -0.25, -0.25]),
        ({"estimator": "rloo"}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_one_success_of_four(options, expected):
    assert compute([1, 0, 0, 0], **options) == pytest.approx(expected, abs=1e-6)


def test_reinforce_pp_normalises_over_the_batch():
    sign = [1, -1, -1, -1, 1, 1, 1, -1]
    expected = [0.935414 * s for s in sign]
    result = compute([1, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4, estimator="reinforce_pp")
    assert result == pytest.approx(expected, abs=1e-6)


def test_leave_one_out_divides_only_where_the_others_differ():
    result = compute([0.35] * 7 + [0.7])
    assert result == pytest.approx([-0.377962] * 7 + [0.35], abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("value", [0.0, 0.1, 0.35, -1e6, 1e-30])
def test_equal_rewards_get_exactly_zero(options, value, epsilon):
    assert compute([value] * 7, **options, epsilon=epsilon) == [0.0] * 7


@pytest.mark.parametrize("options", VARIANTS)
def test_rewards_equal_up_to_rounding_are_equal(options):
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.3], dtype=torch.float64)
    assert rewards[0] != rewards[1]
    assert advantages(rewards, torch.zeros(4, dtype=torch.int64), **options).tolist() == [0.0] * 4


def test_a_small_true_difference_is_not_rounding():
    assert compute([0.5, 0.500001, 0.5], leave_one_out=False, epsilon=0.0)[1] == pytest.approx(1.1547, abs=1e-3)


@pytest.mark.parametrize("options", VARIANTS)
def test_a_missing_reward_leaves_its_group_and_nothing_else(options):
    rewards, groups = [1, NAN, 0, 0, 0.5, 2, 0.25], [3, 3, 3, 3, 9, 9, 9]
    kept = [0, 2, 3, 4, 5, 6]
    result = compute(rewards, groups, **options)
    without = compute([rewards[i] for i in kept], [groups[i] for i in kept], **options)
    assert result[1] == 0.0
    assert [result[i] for i in kept] == without
    assert all(math.isfinite(value) for value in result)


@pytest.mark.parametrize("missing", [math.inf, -math.inf])
def test_an_infinite_reward_is_a_missing_one(missing):
    assert compute([1, missing, 0, 0]) == compute([1, NAN, 0, 0])


def test_a_rejected_sample_does_not_shift_the_baseline():
    """A rejected sample comes as NaN: the baseline is that of the three others."""
    assert compute([3, NAN, 0, 0], estimator="dr_grpo") == pytest.approx([2, 0, -1, -1])


@pytest.mark.parametrize("options", VARIANTS)
def test_fewer_than_two_valid_rewards_give_zero(options):
    result = compute([1, NAN, 0.5, 0, 1, NAN], [0, 0, 1, 2, 2, 3], **options)
    assert [result[i] for i in (0, 1, 2, 5)] == [0.0] * 4
    assert result[3] < 0 < result[4]


@pytest.mark.parametrize("options", VARIANTS)
def test_nothing_and_nothing_valid(options):
    assert compute([], [], **options) == []
    assert compute([NAN, NAN], **options) == [0.0, 0.0]


def test_groups_of_two_under_leave_one_out():
    assert compute([1, 0.25]) == [0.75, -0.75]


def test_groups_are_ids_neither_contiguous_nor_small():
    rewards, groups = [1, 1, 0, 1, 0, 1], [10**12, -5, 10**12, -5, 10**12, -5]
    result = compute(rewards, groups)
    assert [result[i] for i in (1, 3, 5)] == [0.0] * 3
    assert [result[i] for i in (0, 2, 4)] == compute([1, 0, 0])


def test_the_same_prompt_drawn_twice_is_two_groups():
    apart = compute([1, 0, 1, 1], [0, 0, 1, 1], estimator="dr_grpo")
    assert apart == pytest.approx([0.5, -0.5, 0, 0])


def test_a_large_offset_does_not_cancel():
    rewards = torch.tensor([1e8 + 1, 1e8, 1e8, 1e8], dtype=torch.float64)
    result = advantages(rewards, torch.zeros(4, dtype=torch.int64), leave_one_out=False)
    assert result.tolist() == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)


def test_integer_rewards():
    result = advantages(torch.tensor([1, 0, 0, 0]), torch.zeros(4, dtype=torch.int64), estimator="dr_grpo")
    assert result.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"\(2,\) and group_ids \(3,\)"):
        advantages(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="'ppo': grpo, dr_grpo, rloo or reinforce_pp"):
        compute([1, 0], estimator="ppo")


SETTINGS = settings(max_examples=60, deadline=None)
reward = st.one_of(st.just(NAN), st.sampled_from([0.0, 1.0, 0.35, 0.7, -2.0]), st.floats(-10, 10, width=32))
batches = st.lists(st.tuples(reward, st.integers(-3, 3)), min_size=1, max_size=24)


def expected_advantages(rewards, groups, options):
    """The formulas, one sample at a time."""
    result = []
    for index, (own, group) in enumerate(zip(rewards, groups, strict=True)):
        others = [
            r
            for i, (r, g) in enumerate(zip(rewards, groups, strict=True))
            if g == group and i != index and not math.isnan(r)
        ]
        if math.isnan(own) or not others:
            result.append(0.0)
            continue
        members = [own, *others]
        if options["estimator"] == "reinforce_pp":
            members = [r for r in rewards if not math.isnan(r)]
        if max(members) == min(members):
            result.append(0.0)
            continue
        centred = own - statistics.fmean(members)
        if options["estimator"] == "rloo":
            centred *= len(members) / (len(members) - 1)
        elif options["estimator"] == "reinforce_pp":
            centred /= statistics.stdev(members) + 1e-8
        elif options["estimator"] == "grpo":
            base = others if options["leave_one_out"] else members
            centred = own - statistics.fmean(base)
            if options["normalize"] and max(base) != min(base):
                centred /= statistics.stdev(base) + 1e-6
        result.append(centred)
    return result


@pytest.mark.parametrize("options", VARIANTS)
@SETTINGS
@given(batch=batches)
def test_formulas_sample_by_sample(options, batch):
    rewards, groups = zip(*batch, strict=True)
    rewards = torch.tensor(rewards, dtype=torch.float32).double()
    rewards = (rewards * 64).round() / 64  # away from rounding, which the comparison treats on purpose
    result = advantages(rewards, torch.tensor(groups), **options)
    assert result.tolist() == pytest.approx(expected_advantages(rewards.tolist(), groups, options), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("options", VARIANTS)
@SETTINGS
@given(batch=batches, data=st.data())
def test_order_and_names_of_groups_do_not_matter(options, batch, data):
    order = data.draw(st.permutations(range(len(batch))))
    rewards, groups = zip(*batch, strict=True)
    plain = compute(rewards, groups, **options)
    moved = compute([rewards[i] for i in order], [1000 - 7 * groups[i] for i in order], **options)
    assert moved == pytest.approx([plain[i] for i in order], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("options", [v for v in VARIANTS if v["estimator"] in GROUP_ESTIMATORS])
@SETTINGS
@given(batch=batches)
def test_another_group_changes_nothing(options, batch):
    rewards, groups = zip(*batch, strict=True)
    plain = compute(rewards, groups, **options)
    assert compute([*rewards, 5.0, -5.0], [*groups, 99, 99], **options)[:-2] == plain
