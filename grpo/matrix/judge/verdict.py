"""What the judge decided, and why."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grpo.matrix.judge.failure import FailureClass
from grpo.telemetry.journal import to_json

Outcome = Literal["pass", "fail", "faster", "not judged"]
Status = Literal["within", "worse", "better", "informs"]
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Comparison:
    """One metric against its reference. A bound that is None does not exist."""

    metric: str
    value: float
    reference: float
    lower: float | None
    upper: float | None
    unit: str
    status: Status
    gates: bool  # whether being outside decides the verdict

    @property
    def difference(self) -> float:
        return self.value - self.reference

    @property
    def relative(self) -> float:
        return self.value / self.reference - 1


@dataclass(frozen=True)
class BoundResult:
    """One absolute bound of the case; `value` is the worst that counted, None where nothing was measured."""

    metric: str
    statistic: str
    value: float | None
    lower: float | None
    upper: float | None
    holds: bool


@dataclass(frozen=True)
class Slowest:
    """The rank that took longest for a phase."""

    rank: int
    host: str
    seconds: float  # median over the judged steps
    median: float  # of all ranks


@dataclass(frozen=True)
class Share:
    """What one phase adds to the difference of the total; the shares of a verdict sum to that difference."""

    phase: str  # "other": what the reference's phases leave of the total
    value: float  # seconds
    reference: float  # seconds
    seconds: float  # the difference
    share: float | None  # of the total's difference; None where that is 0
    parts: tuple[tuple[str, float], ...] = ()  # what the run itself says of these seconds: name, seconds
    slowest: Slowest | None = None  # None: the run does not say


@dataclass(frozen=True)
class Finding:
    """A rule that was not kept (`fails`), or that keeps the run from being judged."""

    rule: int  # of the rules of judgement
    subject: str  # a metric, a file, a step
    message: str
    failure: FailureClass | None  # None: it is not judged because of this


@dataclass(frozen=True)
class Steps:
    """How the steps of a run were used."""

    judged: int
    warmup: int
    apart: int  # with a checkpoint or a validation, or the refit saved by one
    apart_total: float | None  # median of their seconds


@dataclass(frozen=True)
class Rerun:
    """What has to run before the verdict is final; whoever submits jobs reads it in the run's `verdict.json`."""

    rule: int  # 4: outside the band; 6: the machine; 7: the scheduler
    runs: int  # one job each
    exclude: tuple[str, ...]  # nodes to stay away from, where there are others
    gpu_hours: float  # of all of them, as this run took
    reason: str


@dataclass(frozen=True)
class Verdict:
    case: str
    partition: str
    outcome: Outcome
    sentence: str
    failure: FailureClass | None
    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...]
    attribution: tuple[Share, ...]
    bounds: tuple[BoundResult, ...]
    reference: str | None  # published, measured, none; None where the case needs none
    steps: Steps | None = None
    run: str | None = None
    runs: tuple[str, ...] = ()  # where several decided together
    nodes: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)  # the run's figures by metric, those of no reference too
    rerun: Rerun | None = None
    schema_version: int = SCHEMA_VERSION

    def exit_code(self, *, release: bool = False) -> int:
        """0 pass, 1 fail, 2 not judged. "Faster" asks for a fresh reference: it fails a release and nothing else."""
        if self.outcome == "faster":
            return 1 if release else 0
        return {"pass": 0, "fail": 1, "not judged": 2}[self.outcome]

    def to_json(self) -> dict[str, Any]:
        """Plain values; a number that JSON has not is a string, as in a run directory."""
        plain: dict[str, Any] = to_json(asdict(self))
        return plain
