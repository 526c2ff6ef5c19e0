from grpo.matrix.judge.ranks import slowest_ranks
from grpo.matrix.judge.words import parts_words
from tests.support.matrix import evidence, measured, verdict

HOSTS = ["a", "a", "b", "b"]


def line(step, seconds):
    return {"step": step, "hosts": HOSTS, "timing/policy_training": seconds}


def test_the_rank_with_the_largest_median_is_named():
    lines = [line(1, [9.0, 1.0, 1.0, 1.0]), line(2, [1.0, 1.2, 1.0, 2.0]), line(3, [1.0, 1.0, 1.0, 3.0])]
    slowest = slowest_ranks(lines, {2, 3})["timing/policy_training"]
    assert (slowest.rank, slowest.host, slowest.seconds) == (3, "b", 2.5)
    assert slowest.median == 1.05
    assert slowest_ranks(lines, {1})["timing/policy_training"].rank == 0


def test_what_does_not_fit_is_left_out():
    assert slowest_ranks([], {1}) == {}
    assert slowest_ranks([{"step": 1}], {1}) == {}
    assert slowest_ranks([line(1, [1.0, 2.0])], {1}) == {}
    assert slowest_ranks([line(1, ["slow", 1.0, 1.0, 1.0])], {1}) == {}
    assert slowest_ranks([{"step": 1, "hosts": ["a"], "timing/refit": [1.0]}], {1}) == {}


def test_a_verdict_names_it_beside_the_phase():
    seen = evidence(ranks=[line(step, [28.0, 27.0, 28.0, 31.0]) for step in range(1, 26)])
    share = next(one for one in verdict(seen, reference=measured()).attribution if one.phase == "policy_training")
    assert parts_words(share) == "slowest: rank 3 on b, 31 s (median 28 s)"
