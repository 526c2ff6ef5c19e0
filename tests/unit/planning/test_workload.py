import pytest

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.planning.workload import RankWork, step_lengths, step_workload

PINNED = ("policy.generation.max_new_tokens=100", "policy.generation.min_new_tokens=100")


def workload(*overrides, data=1, prompt=29):
    config = load_config("grpo_math_1b", overrides).config
    return step_workload(config, step_lengths(config, prompt_tokens=prompt, completion_tokens=None), data)


def test_packed_sequences_of_one_length_by_hand():
    # 512 samples of 128 seen tokens on 4 ranks: 16 fit a row of 2048.
    found = workload(*PINNED, data=4)
    assert (found.samples, found.updates) == (512, 1)
    assert found.training == RankWork(8, 128 * 128, 128.0 * 128**2, 128 * 100)
    assert found.scoring == found.training
    assert (found.train_cap, found.score_cap) == (2048, 2048)


def test_padded_rows_attend_over_their_width():
    found = workload(
        *PINNED, "policy.sequence_packing.enabled=false", "policy.dynamic_batching.enabled=true",
        "policy.dynamic_batching.sequence_length_round=100", data=4,
    )  # fmt: skip
    assert found.training == RankWork(-(-128 // 10), 128 * 200, 128.0 * 200**2, 128 * 100)


def test_static_micro_batches_are_rows_and_may_grow_to_the_longest_sequence():
    found = workload(*PINNED, "policy.sequence_packing.enabled=false", "policy.logprob_batch_size=8", data=4)
    assert (found.training.micro_batches, found.scoring.micro_batches) == (32, 16)
    assert (found.train_cap, found.score_cap) == (4 * 512, 8 * 512)


def test_fewer_samples_than_ranks_leave_some_without_work():
    config = load_config("grpo_math_1b").config
    lengths = step_lengths(config, prompt_tokens=29, completion_tokens=50)
    found = step_workload(config, lengths, 1024)
    assert found.training.micro_batches == 1
    assert found.training.predicted_tokens == lengths.completions[-1]


def test_updates_share_the_samples():
    found = workload(*PINNED, "policy.train_global_batch_size=128")
    assert found.updates == 4
    assert found.training.computed_tokens == 512 * 128


def test_a_rank_is_given_the_longest_sequence():
    found = workload(data=8)
    assert found.training.predicted_tokens >= sum(found.lengths.completions) / 8


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ((), (1, 1)),
        (("loss_fn.reference_policy_kl_penalty=0",), (1, 0)),
        (("loss_fn.force_on_policy_ratio=true",), (0, 1)),
        (("loss_fn.force_on_policy_ratio=true", "loss_fn.reference_policy_kl_in=reward"), (1, 1)),
    ],
)
def test_log_prob_passes_are_those_that_the_trainer_makes(overrides, passes):
    found = workload(*overrides)
    assert (found.scoring_passes, found.reference_passes) == passes


def test_lengths_that_are_replayed_are_planned_with():
    key = "policy.generation.replay_lengths"
    made = load_config("grpo_math_8b", [f"{key}.mean=795"]).config
    assert step_lengths(made, prompt_tokens=128, completion_tokens=None).mean == pytest.approx(795, rel=2e-3)
    pinned = load_config("grpo_math_8b", [f"{key}.mean=777", f"{key}.shape=null"]).config
    assert set(step_lengths(pinned, prompt_tokens=128, completion_tokens=100).completions) == {777}


def test_a_mean_that_does_not_fit():
    config = load_config("grpo_math_1b").config
    with pytest.raises(ConfigError, match="--completion-tokens 500: expected 1 to 384"):
        step_lengths(config, prompt_tokens=128, completion_tokens=500)
