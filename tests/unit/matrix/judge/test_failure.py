from typing import get_args

import pytest

from grpo.matrix.judge.failure import RETRIED, FailureClass, JobOutcome, classify

DONE = {"exit_code": 0, "stage": "done"}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (JobOutcome("COMPLETED", **DONE), None),
        (JobOutcome(None, **DONE), None),
        (JobOutcome("COMPLETED", exit_code=1, stage="trainer"), "crash"),  # the script ended 0 all the same
        (JobOutcome("COMPLETED"), "unknown"),  # no result file: nothing says that it went well
        (JobOutcome("COMPLETED", exit_code=0, stage="trainer"), "unknown"),
        (JobOutcome("FAILED", exit_code=137, stage="trainer"), "out_of_memory"),
        (JobOutcome("FAILED", exit_code=2, stage="trainer"), "crash"),
        (JobOutcome("FAILED", stage="setup"), "infra"),
        (JobOutcome("FAILED", stage="setup", stopped_by="USR1"), "timeout"),  # its set-up took all of the time
        (JobOutcome("FAILED", **DONE), "unknown"),
        (JobOutcome("OUT_OF_MEMORY", exit_code=137, stage="trainer"), "out_of_memory"),
        (JobOutcome("TIMEOUT", **DONE), "timeout"),
        (JobOutcome("COMPLETED", exit_code=85, stage="trainer", stopped_by="USR1"), "timeout"),
        (JobOutcome("COMPLETED", exit_code=85, stage="trainer", stopped_by="TERM"), "preempted"),
        (JobOutcome("FAILED", exit_code=1, stage="trainer", stopped_by="USR1"), "timeout"),
        (JobOutcome("FAILED", exit_code=1, stage="trainer", stopped_by="TERM"), "preempted"),
        (JobOutcome("FAILED", exit_code=137, stage="trainer", stopped_by="TERM"), "preempted"),  # it took too long
        (JobOutcome("FAILED", exit_code=85, stage="trainer"), "preempted"),
        (JobOutcome("PREEMPTED"), "preempted"),
        (JobOutcome("NODE_FAIL"), "infra"),
        (JobOutcome("PENDING"), "queue"),
        (JobOutcome("CANCELLED"), "unknown"),
        (JobOutcome("SOMETHING_NEW"), "unknown"),
    ],
)
def test_classes(job, expected):
    assert classify(job) == expected


def test_the_set_is_closed_and_only_infra_is_retried():
    assert set(get_args(FailureClass)) == {
        "infra", "queue", "preempted", "timeout", "out_of_memory", "crash", "correctness", "regression", "unknown",
    }  # fmt: skip
    assert {"infra"} == RETRIED
