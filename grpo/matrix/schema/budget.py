"""`matrices/budgets.yaml`: what a cadence may cost."""

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import SchemaVersion


class PerCadence(Section):
    """Hours; a nightly run does what pull requests do and more, and so on: each counts its own cases alone."""

    pr: float = Field(ge=0)
    nightly: float = Field(ge=0)
    weekly: float = Field(ge=0)
    release: float = Field(ge=0)


class GateMinutes(Section):
    """How the time of the required check is divided; its parts sum to no more than the whole."""

    whole: float = Field(25, gt=0)
    lint: float = Field(1, gt=0)
    unit: float = Field(2, gt=0)
    functional: float = Field(10, gt=0)
    slurm: float = Field(12, gt=0)


class Budgets(Section):
    schema_version: SchemaVersion
    gate_minutes: GateMinutes = GateMinutes()
    gpu_hours: PerCadence = Field(description="of all cases of a cadence, each up to its time limit")
    case_gpu_hours: dict[str, float] = Field(
        {}, description="of each case with GPUs: of one run on one partition, up to its time limit"
    )
    cpu_hours: PerCadence = Field(description="the same of cases without GPUs, in hours of a node")
