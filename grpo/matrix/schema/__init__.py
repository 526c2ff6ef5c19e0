"""What may stand in the files under `matrices/`."""

from grpo.matrix.schema.budget import Budgets
from grpo.matrix.schema.case import Bound, Case, CaseEntry, Checks, Family, Lengths, Parallel
from grpo.matrix.schema.partition import Partition, Rates
from grpo.matrix.schema.reference import Figure, Measured, Published, Reference, Stack, Unmeasured

__all__ = [
    "Bound",
    "Budgets",
    "Case",
    "CaseEntry",
    "Checks",
    "Family",
    "Figure",
    "Lengths",
    "Measured",
    "Parallel",
    "Partition",
    "Published",
    "Rates",
    "Reference",
    "Stack",
    "Unmeasured",
]
