"""What may stand in the files under `matrices/`."""

from grpo.matrix.schema.budget import Budgets, GateMinutes
from grpo.matrix.schema.case import (
    LAYERS,
    Benchmark,
    Bound,
    Case,
    CaseEntry,
    Checks,
    Entry,
    Family,
    Interruption,
    Layer,
    Lengths,
    Parallel,
    Suite,
    SuiteEntry,
)
from grpo.matrix.schema.partition import Partition, Rates
from grpo.matrix.schema.quarantine import Quarantine, Quarantined
from grpo.matrix.schema.reference import Figure, Measured, Published, Reference, Stack, Unmeasured
from grpo.matrix.schema.stack import LockedStack

__all__ = [
    "LAYERS",
    "Benchmark",
    "Bound",
    "Budgets",
    "Case",
    "CaseEntry",
    "Checks",
    "Entry",
    "Family",
    "Figure",
    "GateMinutes",
    "Interruption",
    "Layer",
    "Lengths",
    "LockedStack",
    "Measured",
    "Parallel",
    "Partition",
    "Published",
    "Quarantine",
    "Quarantined",
    "Rates",
    "Reference",
    "Stack",
    "Suite",
    "SuiteEntry",
    "Unmeasured",
]
