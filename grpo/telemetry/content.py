"""What a report says, apart from how it looks: HTML and Markdown show the same tables."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo.telemetry import formatting as fmt
from grpo.telemetry.reader import Run
from grpo.telemetry.summary import REWARD_WINDOW, Summary, summarise

MAX_EVENTS = 60
MAX_SAMPLES = 8
MAX_SAMPLE_CHARACTERS = 600

# Configuration that a reader asks for first; a key that the run does not have is left out.
_CONFIG_KEYS = (
    "policy.model_name",
    "policy.precision",
    "policy.max_total_sequence_length",
    "policy.generation.backend",
    "policy.generation.max_new_tokens",
    "policy.generation.temperature",
    "grpo.num_prompts_per_step",
    "grpo.num_generations_per_prompt",
    "grpo.advantage_estimator",
    "grpo.use_leave_one_out_baseline",
    "grpo.use_dynamic_sampling",
    "grpo.max_num_steps",
    "grpo.seed",
    "loss_fn.kind",
    "loss_fn.aggregation",
    "loss_fn.ratio_clip_min",
    "loss_fn.ratio_clip_max",
    "loss_fn.entropy_coef",
    "loss_fn.reference_policy_kl_penalty",
    "policy.optimizer.kwargs.lr",
    "policy.train_global_batch_size",
    "policy.max_grad_norm",
    "cluster.num_nodes",
    "cluster.gpus_per_node",
)
_OUTCOME = {
    "running": "still running",
    "completed": "completed",
    "stopped": "stopped before its end",
    "failed": "failed",
    "killed": "killed: its process is gone and wrote no outcome",
}


@dataclass(frozen=True)
class Tile:
    """One key number."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class PhaseLine:
    name: str
    color: str  # role in the theme
    depth: int
    median: str
    share: str
    per_cent: float  # width of the bar
    total: str


@dataclass(frozen=True)
class EventLine:
    time: str
    kind: str
    step: str
    text: str


@dataclass(frozen=True)
class Content:
    """Everything that a report shows, as texts that are not yet escaped."""

    title: str
    subtitle: str
    state: str
    outcome: str
    warnings: list[str]
    tiles: list[Tile]
    phases: list[PhaseLine]
    phases_note: str
    config: list[tuple[str, str]]
    events: list[EventLine]
    events_left_out: int
    environment: list[tuple[str, str]]
    samples: list[dict[str, str]]


def gather(run: Run) -> Content:
    summary = summarise(run)
    return Content(
        title=run.manifest.name,
        subtitle=_subtitle(run),
        state=run.state,
        outcome=_OUTCOME[run.state],
        warnings=_warnings(run, summary),
        tiles=_tiles(summary),
        phases=_phases(summary),
        phases_note=f"Median and share over {summary.timing.counted_steps} {summary.timing.rule}; "
        "validation and checkpoint: the median of the steps that had one.",
        config=[(key, str(value)) for key in _CONFIG_KEYS if (value := _dotted(run.config, key)) is not None],
        events=[_event(event) for event in run.events[-MAX_EVENTS:]],
        events_left_out=max(len(run.events) - MAX_EVENTS, 0),
        environment=_environment(run),
        samples=[_sample(sample) for sample in run.samples[-MAX_SAMPLES:]],
    )


def _subtitle(run: Run) -> str:
    facts = run.manifest.facts
    parameters = facts.get("parameters")
    parts = [facts.get("recipe"), facts.get("model")]
    parts += [f"{fmt.count(parameters)} parameters"] if isinstance(parameters, int | float) else []
    parts += [facts.get("device"), f"started {_date(run.manifest.started)}"]
    return " · ".join(str(part) for part in parts if part)


def _warnings(run: Run, summary: Summary) -> list[str]:
    found = []
    if run.state in ("failed", "killed", "stopped"):
        exit_code = run.manifest.exit_code
        code = "" if exit_code is None else f" (exit code {exit_code})"
        reason = run.manifest.reason
        found.append(f"The run {_outcome_verb(run.state)}{code}" + (f": {reason}" if reason else "."))
    if not run.metrics:
        found.append("No step was finished yet: there is nothing to draw.")
    if summary.not_finite:
        found.append(f"Not finite: {', '.join(summary.not_finite[:6])}.")
    if summary.reward_failures:
        found.append(f"{fmt.number(summary.reward_failures)} completions could not be scored.")
    return found


def _outcome_verb(state: str) -> str:
    return {"killed": "was killed"}.get(state, "has failed" if state == "failed" else "was stopped")


def _tiles(summary: Summary) -> list[Tile]:
    timing = summary.timing
    tiles = []
    if summary.accuracy is not None:
        chance = "validation · " if summary.chance is None else f"validation · chance {summary.chance:.2f} · "
        best = f"best {fmt.number(summary.best_accuracy)} at step {summary.best_accuracy_step}"
        tiles.append(Tile("Accuracy", f"{summary.accuracy:.3f}", chance + best))
    if summary.reward_last is not None:
        window = min(REWARD_WINDOW, summary.steps)
        detail = f"training, last {window} · {fmt.number(summary.reward_first)} in the first"
        tiles.append(Tile("Reward", fmt.number(summary.reward_last), detail))
    of_steps = "" if summary.max_steps is None else f"of at most {summary.max_steps}"
    tiles.append(Tile("Steps", fmt.number(summary.steps), of_steps))
    tiles.append(Tile("Time in steps", _whole_time(timing.total), f"{fmt.seconds(timing.median_step)} a step, median"))
    if summary.tokens_per_second_per_gpu is not None:
        mfu = "" if summary.mfu is None else f"FLOP utilisation {fmt.per_cent(summary.mfu)}"
        tiles.append(Tile("Tokens/s/GPU", fmt.number(round(summary.tokens_per_second_per_gpu, 1)), mfu or "median"))
    if summary.completion_length is not None:
        truncated = summary.truncated_fraction
        detail = "tokens" if truncated is None else f"tokens · {fmt.per_cent(truncated)} truncated"
        tiles.append(Tile("Completion", fmt.number(summary.completion_length), detail))
    if summary.peak_memory_gib is not None:
        tiles.append(Tile("Peak memory", f"{summary.peak_memory_gib:.2f} GiB", "highest of the steps"))
    return tiles


def _whole_time(total: float) -> str:
    return fmt.seconds(total) if total < 60 else fmt.duration(total)


def _phases(summary: Summary) -> list[PhaseLine]:
    lines = []
    phase = ""
    for row in summary.timing.rows:
        phase = row.name if row.depth == 0 else phase
        lines.append(
            PhaseLine(
                name=row.name.replace("_", " "),
                color=f"phase-{phase}",
                depth=row.depth,
                median=fmt.seconds(row.median),
                share=fmt.per_cent(row.share),
                per_cent=100 * (row.share or 0.0),
                total=fmt.seconds(row.total),
            )
        )
    return lines


def _event(event: Mapping[str, Any]) -> EventLine:
    rest = {key: value for key, value in event.items() if key not in ("time", "kind", "step") and value is not None}
    text = "; ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in rest.items())
    return EventLine(_date(event.get("time")), str(event.get("kind", "")), str(event.get("step", "")), text)


def _environment(run: Run) -> list[tuple[str, str]]:
    told = run.environment
    record = run.manifest
    rows = [
        ("grpo", record.grpo_version),
        ("commit", (record.git_commit or "") + (" with changes" if record.git_dirty else "")),
        *((name, str(version)) for name, version in told.get("stack", {}).items()),
        *((key, str(told.get(key) or "")) for key in ("cuda", "python", "platform", "cpu")),
    ]
    for node in run.nodes:
        gpus = [gpu.get("name", "GPU") for gpu in node.get("gpus", [])]
        hardware = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
        text = f"{node.get('cpus_usable')} CPUs · {fmt.number(node.get('memory_gib'))} GiB · {hardware}"
        rows.append((f"node {node.get('host')}", text))
    rows += [("run", record.run_id), ("command", shlex.join(record.command))]
    return [(name, value) for name, value in rows if value]


def _sample(sample: Mapping[str, Any]) -> dict[str, str]:
    return {key: _short(value, MAX_SAMPLE_CHARACTERS) for key, value in sample.items()}


def _short(value: Any, limit: int = 200) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _dotted(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _date(seconds: Any) -> str:
    if not isinstance(seconds, int | float):
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
