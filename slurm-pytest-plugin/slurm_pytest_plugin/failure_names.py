"""The closed set of classes of failure."""

from typing import Literal, get_args

FailureClass = Literal[
    "infra", "queue", "preempted", "timeout", "out_of_memory", "crash", "correctness", "regression", "unknown"
]
FAILURES: tuple[FailureClass, ...] = get_args(FailureClass)
