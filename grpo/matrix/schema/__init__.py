"""What may stand in the files under `matrices/`."""

from grpo.matrix.schema.budget import Budgets
from grpo.matrix.schema.case import Bound, Case, CaseEntry, Checks, Family, Parallel
from grpo.matrix.schema.partition import Partition
from grpo.matrix.schema.reference import Figure, Measured, Published, Reference, Unmeasured

__all__ = [
    "Bound",
    "Budgets",
    "Case",
    "CaseEntry",
    "Checks",
    "Family",
    "Figure",
    "Measured",
    "Parallel",
    "Partition",
    "Published",
    "Reference",
    "Unmeasured",
]
