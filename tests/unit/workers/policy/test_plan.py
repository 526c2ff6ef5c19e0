from grpo.batching.micro_batches import Static
from grpo.workers.policy.plan import Ranks, plan_batch


def test_one_process_has_every_trained_sequence_in_the_order_given():
    plan = plan_batch([4, 0, 2, 6], Static(2), Ranks())
    assert [each.rows for each in plan.micro_batches] == [[0, 2], [3]]
    assert plan.places == [0, 1, 2]
    assert plan.sequences == 3
    assert plan.efficiency == 12 / 14


def test_ranks_share_what_is_trained_and_know_the_whole():
    needed = [4, 0, 2, 6]
    plans = [plan_batch(needed, Static(2), Ranks(rank, 2)) for rank in range(2)]
    assert [[each.rows for each in plan.micro_batches] for plan in plans] == [[[3]], [[0, 2]]]
    assert [plan.places for plan in plans] == [[2], [0, 1]]
    assert all(plan.sequences == 3 and plan.efficiency == 12 / 14 for plan in plans)


def test_a_rank_without_sequences_has_dummies_that_count_as_computed():
    plans = [plan_batch([4], Static(2, 2), Ranks(rank, 2)) for rank in range(2)]
    assert [[each.rows for each in plan.micro_batches] for plan in plans] == [[[0]], [[]]]
    assert plans[1].places == [-1]
    assert all(plan.efficiency == 4 / 6 for plan in plans)


def test_nothing_trained_means_nothing_to_run_on_any_rank():
    for rank in range(2):
        plan = plan_batch([0, 0], Static(2), Ranks(rank, 2))
        assert plan.micro_batches == []
        assert plan.sequences == 0
