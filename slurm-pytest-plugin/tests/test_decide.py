import pytest
from fakes import LIMITS
from slurm_pytest_plugin import Case, Result, Seen
from slurm_pytest_plugin.decide import Ended, Finish, GiveUp, Restart, Retry, Spent, Wait, after, watch

CASE = Case("a", script="", time_limit="00:01:00", requeue_exit_code=85, max_restarts=1)


@pytest.mark.parametrize(
    ("seen", "spent", "what"),
    [
        (Seen("PENDING", "Priority"), Spent(queued=99), Wait),
        (Seen("PENDING", "Priority"), Spent(queued=101), GiveUp),
        (Seen("PENDING", "PartitionNodeLimit"), Spent(), GiveUp),
        (Seen("REQUEUED"), Spent(queued=99), Wait),
        (Seen("RUNNING"), Spent(running=79), Wait),
        (Seen("RUNNING"), Spent(running=81), GiveUp),
        (Seen("COMPLETING"), Spent(running=61), Wait),
        (Seen("COMPLETED"), Spent(confirmed=1), Wait),
        (Seen("COMPLETED"), Spent(confirmed=2), Ended),
        (None, Spent(unknown=10), Wait),
        (None, Spent(unknown=11), Ended),
    ],
)
def test_what_follows_from_a_state(seen, spent, what):
    assert isinstance(watch(seen, spent, CASE, LIMITS), what)


def test_giving_up_has_a_class_and_a_reason():
    assert watch(Seen("PENDING", "InvalidQOS"), Spent(), CASE, LIMITS) == GiveUp(
        "queue", "it can never start: InvalidQOS"
    )
    late = watch(Seen("RUNNING"), Spent(running=500), CASE, LIMITS)
    assert isinstance(late, GiveUp)
    assert late.failure == "timeout"


@pytest.mark.parametrize(
    ("failure", "result", "retries", "restarts", "what"),
    [
        (None, Result(0), 0, 0, Finish),
        ("crash", Result(1), 0, 0, Finish),
        ("regression", Result(1), 0, 0, Finish),
        ("infra", None, 0, 0, Retry),
        ("infra", None, 1, 0, Retry),
        ("infra", None, 2, 0, Finish),
        ("timeout", Result(85, stopped_by="USR1"), 0, 0, Restart),
        ("preempted", Result(85), 0, 0, Restart),
        ("unknown", Result(85, stopped_by="TERM"), 0, 0, Finish),  # cancelled: it does not come back
        ("preempted", Result(85), 0, 1, Finish),
        ("timeout", None, 0, 0, Finish),
    ],
)
def test_what_follows_from_an_end(failure, result, retries, restarts, what):
    assert isinstance(after(CASE, failure, result, retries=retries, restarts=restarts), what)


def test_without_a_code_for_it_nothing_is_started_again():
    plain = Case("a", script="", max_restarts=3)
    assert isinstance(after(plain, "crash", Result(85), retries=0, restarts=0), Finish)
