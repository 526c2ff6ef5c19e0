"""`matrices/<family>.yaml`: what is run, and what is asserted of it.

An entry with `tests` is a suite, which pytest judges; one with `recipe` trains, and its run directory is judged.
"""

from typing import Any, Literal, get_args

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import Duration, SchemaVersion

Layer = Literal["unit", "functional", "gpu", "cluster"]
LAYERS: tuple[Layer, ...] = get_args(Layer)
Tier = Literal["L0", "L1", "L2", "L3"]
Cadence = Literal["pr", "nightly", "weekly", "release"]
Design = Literal["covering", "product"]
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


class Interruption(Section):
    """The trainer is killed once; the job is requeued, and goes on from the last checkpoint before that."""

    after_step: int = Field(gt=1, description="killed during the step that follows it")
    equal: dict[str, float] = Field(
        min_length=1,
        description="by metric: by what share a step that is trained again may differ from the first time; 0: by none",
    )


class Benchmark(Section):
    """A program that the job runs after the trainer; it leaves records of what it measured, which are judged."""

    module: str = Field(description="python -m MODULE ARGUMENTS --out FOLDER writes FOLDER/results.jsonl")
    arguments: list[str] = Field([])
    bounds: dict[str, Bound] = Field(min_length=1, description="by KIND.FIELD of the records; every one must hold")


class Entry(Section):
    """What every case says of itself, whether it trains or is a suite of tests."""

    partitions: list[str] = Field(min_length=1)
    stacks: list[str] = Field(
        ["cpu"], min_length=1, description="of versions; a pull request runs the first, nightly runs all"
    )
    time_limit: Duration = Field(description="hours:minutes:seconds")
    tier: Tier = Field(description="L0 is the cheapest")
    cadence: Cadence
    owner: str


class Lengths(Section):
    """The recorded distribution of completion lengths that the case replays, in tokens."""

    mean: float = Field(gt=0)
    p95: float = Field(gt=0, description="95th percentile: a mean alone would hide stragglers")
    longest: float = Field(gt=0)
    source: str = Field(description="which run they were recorded from")


class CaseEntry(Entry):
    """One case that trains, as its family's file has it; the id is its key there."""

    recipe: str
    overrides: list[str] = Field([], description="KEY=VALUE, as the command line takes them")
    nodes: int = Field(1, gt=0)
    gpus_per_node: int = Field(0, ge=0, description="0 runs on the CPU")
    parallel: Parallel = Parallel()
    steps: int = Field(gt=0, description="that the run must reach")
    warmup_steps: int = Field(5, ge=0, description="not judged, at the start and after every resume")
    min_steps: int | None = Field(
        None, gt=0, description="judge on fewer than 20 steps; then the reference is provisional and does not gate"
    )
    paths: list[str] = Field(min_length=1, description="what a change must touch to select the case; `!` excludes")
    checks: Checks = Checks()
    trains: bool = Field(True, description="false: the job ends with its canary, which is what is judged")
    interrupted: Interruption | None = Field(None, description="kill, requeue and go on; null: an undisturbed run")
    benchmark: Benchmark | None = Field(None, description="what runs in the same job when the trainer is done")
    lengths: Lengths | None = Field(None, description="completion lengths that the run replays; null: it samples them")


class Case(CaseEntry):
    """One case of the expanded matrix."""

    id: str
    family: str
    layer: Layer

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


class SuiteEntry(Entry):
    """A case that is a suite of tests: files, folders or single tests that pytest runs."""

    tests: list[str] = Field(min_length=1, description="files, folders as FOLDER/**, or FILE::TEST")
    gpus: int = Field(0, ge=0, description="that the tests use; 0 runs on the CPU")
    paths: list[str] = Field([], description="that select the suite, besides its tests and all that they import")
    factors: dict[str, list[str]] = Field({}, description="names of the values that its tests combine, by factor")
    design: Design = Field("covering", description="covering: every pair of values is in some cell; product: all cells")


class Suite(SuiteEntry):
    """One suite of the expanded matrix."""

    id: str
    entry: str  # its key in the family's file, before axes are expanded
    family: str
    layer: Layer


class Family(Section):
    """A whole file. `defaults` and each value of an axis hold keys of a case."""

    schema_version: SchemaVersion
    layer: Layer
    defaults: dict[str, Any] = Field({}, description="keys that the cases below share")
    cases: dict[str, Any] = Field(min_length=1)
