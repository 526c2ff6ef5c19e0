import pytest
from slurm_pytest_plugin import FAILURES, Result, classify
from slurm_pytest_plugin.states import FINAL


@pytest.mark.parametrize(
    ("state", "result", "failure"),
    [
        ("COMPLETED", Result(0), None),
        (None, Result(0), None),
        ("COMPLETED", None, "unknown"),
        ("COMPLETED", Result(1), "crash"),  # a step failed under a script that ended 0
        ("COMPLETED", Result(0, "trainer"), "unknown"),  # it never said that it was done
        ("FAILED", Result(0), "unknown"),  # it did say so, and the scheduler disagrees
        ("FAILED", Result(3, "trainer"), "crash"),
        ("FAILED", Result(None, "setup"), "infra"),
        ("FAILED", Result(None, "setup", stopped_by="USR1"), "timeout"),  # its set-up took all of the time
        ("FAILED", Result(1, "trainer", failure="infra"), "infra"),
        ("FAILED", Result(137, "trainer"), "out_of_memory"),
        ("OUT_OF_MEMORY", Result(1), "out_of_memory"),
        ("FAILED", Result(85, stopped_by="USR1"), "timeout"),
        ("FAILED", Result(85, stopped_by="TERM"), "preempted"),
        ("FAILED", Result(137, "trainer", stopped_by="TERM"), "preempted"),  # it took too long
        ("FAILED", Result(85), "preempted"),
        ("FAILED", Result(86), "crash"),
        ("TIMEOUT", Result(0), "timeout"),
        ("NODE_FAIL", Result(0), "infra"),
        ("PREEMPTED", None, "preempted"),
        ("CANCELLED", None, "unknown"),
        ("PENDING", None, "queue"),
        ("DEADLINE", None, "queue"),
        (None, None, "unknown"),
    ],
)
def test_the_class_of_an_end(state, result, failure):
    assert classify(state, result, 85) == failure


@pytest.mark.parametrize("state", sorted(FINAL - {"COMPLETED"}))
def test_no_other_end_passes_and_every_class_is_of_the_closed_set(state):
    for result in (None, Result(0), Result(1), Result(None, "setup"), Result(137)):
        assert classify(state, result) in FAILURES
