"""`matrices/<family>.yaml`: what is run, and what is asserted of it."""

from typing import Any, Literal

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import Duration, SchemaVersion

Layer = Literal["unit", "functional", "gpu", "cluster"]
Tier = Literal["L0", "L1", "L2", "L3"]
Cadence = Literal["pr", "nightly", "weekly", "release"]
Statistic = Literal["median", "last", "every"]


class Parallel(Section):
    """Degrees of parallelism. All but the engine's multiply to the number of GPUs (1 on a CPU)."""

    tensor: int = Field(1, gt=0)
    pipeline: int = Field(1, gt=0)
    context: int = Field(1, gt=0)
    data: int = Field(1, gt=0, description="replicas of the policy")
    engine_tensor: int = Field(1, gt=0, description="GPUs that hold one copy of the generation engine")


class Bound(Section):
    """An absolute bound of a correctness metric, in the metric's own unit."""

    lower: float | None = None
    upper: float | None = None
    statistic: Statistic = Field("every", description="of the judged steps: median, the last value, or every value")
    share_of: str | None = Field(None, description="bound the share of this metric, for example of timing/total")


class Checks(Section):
    """What is asserted besides the rules that hold for every run."""

    against_reference: list[str] = Field([], description="metrics judged against the partition's reference")
    bounds: dict[str, Bound] = Field({}, description="by metric")
    present: list[str] = Field([], description="metrics that every judged step must have, besides those of every run")


class Lengths(Section):
    """The recorded distribution of completion lengths that the case replays, in tokens."""

    mean: float = Field(gt=0)
    p95: float = Field(gt=0, description="95th percentile: a mean alone would hide stragglers")
    longest: float = Field(gt=0)
    source: str = Field(description="which run they were recorded from")


class CaseEntry(Section):
    """One case as its family's file has it; the id is its key there."""

    recipe: str
    overrides: list[str] = Field([], description="KEY=VALUE, as the command line takes them")
    nodes: int = Field(1, gt=0)
    gpus_per_node: int = Field(0, ge=0, description="0 runs on the CPU")
    parallel: Parallel = Parallel()
    partitions: list[str] = Field(min_length=1)
    steps: int = Field(gt=0, description="that the run must reach")
    warmup_steps: int = Field(5, ge=0, description="not judged, at the start and after every resume")
    min_steps: int | None = Field(
        None, gt=0, description="judge on fewer than 20 steps; then the reference is provisional and does not gate"
    )
    time_limit: Duration = Field(description="hours:minutes:seconds")
    tier: Tier = Field(description="L0 is the cheapest")
    cadence: Cadence
    paths: list[str] = Field(min_length=1, description="what a change must touch to select the case; `!` excludes")
    checks: Checks = Checks()
    lengths: Lengths | None = Field(None, description="completion lengths that the run replays; null: it samples them")
    owner: str


class Case(CaseEntry):
    """One case of the expanded matrix."""

    id: str
    family: str
    layer: Layer

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


class Family(Section):
    """A whole file. `defaults` and each value of an axis hold keys of a case."""

    schema_version: SchemaVersion
    layer: Layer
    defaults: dict[str, Any] = Field({}, description="keys that the cases below share")
    cases: dict[str, Any] = Field(min_length=1)
