"""Refits alone, as a run makes them: `python -m benchmarks.refit --help`.

Policy and engine are started as a recipe and overrides say. Each round moves what the placement moves after training,
sends all weights and makes the engine ready to sample; the seconds of each part are those of a run's metrics.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from grpo.config import load_config
from grpo.config.schema import Config
from grpo.models.locate import locate_model
from grpo.models.public import public_shape
from grpo.placement.placement import Placement, sleep_until_needed
from grpo.placement.plan import plan_of
from grpo.refit.factory import Refit, refits
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.supported import check_runnable, device_of
from grpo.workers.generation.factory import make_generator, make_streaming_generator
from grpo.workers.groups.reservation import reserved_for
from grpo.workers.policy.factory import started_policy
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.protocol import StatefulPolicy

PARTS = ("offload", "wake", "export", "transfer", "load", "connect")
# Of an H200: half of the rate of a copy on the device after 20 ms, and 60 % of a broadcast's over NVLink.
_SHARED_S, _SHARED_BYTES_S = 0.020, 1.05e12
_BROADCAST_BYTES_S = 0.6 * 369e9


@dataclass(frozen=True)
class Running:
    """What is measured."""

    config: Config
    policy: StatefulPolicy | PolicyGroup
    refit: Refit
    timer: PhaseTimer


def main(
    recipe: Annotated[str, typer.Argument(help="name or file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    *,
    rounds: Annotated[int, typer.Option(min=2, help="the first connects, and is shown apart")] = 8,
    name: Annotated[str, typer.Option(help="of what is measured: the files' name")] = "refit",
    out: Annotated[Path | None, typer.Option(help="folder for NAME.json and NAME.md")] = None,
) -> None:
    """Measure refits."""
    config = configured(recipe, overrides or [])
    check_runnable(config)
    started = time.perf_counter()
    with started_run(config) as running:
        start_s = time.perf_counter() - started
        measured = [one_round(running) for _ in range(rounds)]
    page = markdown(name, config, measured)
    typer.echo(page)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(page)
        body = {"name": name, "overrides": overrides, "start_s": start_s, "rounds": measured}
        (out / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")


def configured(recipe: str, overrides: Sequence[str]) -> Config:
    """The configuration; a public model's shape stands for the model where weights are random."""
    config = load_config(recipe, list(overrides)).config
    shape = public_shape(config.policy.model_name)
    if shape is None or not config.policy.random_weights:
        return config
    return load_config(recipe, [*overrides, f"policy.model_name={shape}"]).config


@contextmanager
def started_run(config: Config) -> Iterator[Running]:
    """Engine and policy, in the order in which a run starts them."""
    path = locate_model(config.policy.model_name, config.policy.model_revision)
    start = make_streaming_generator if config.grpo.async_grpo.enabled else make_generator
    with ExitStack() as stack:
        rooms = stack.enter_context(reserved_for(config))
        engine = start(config, path, None if rooms is None else rooms.engines, weights_from="refit")
        stack.callback(engine.shutdown)
        plan = plan_of(config)
        sleep_until_needed(plan, engine)
        policy = stack.enter_context(started_policy(config, None if rooms is None else rooms.policy))
        refit = refits(config, policy, engine)
        here = device_of(config) == "cuda" and rooms is None
        timer = PhaseTimer(
            synchronise=torch.cuda.synchronize if here else None, entering=Placement(plan, policy, engine).enter
        )
        yield Running(config, policy, refit, timer)


ONLOAD = "timing/policy_training/onload"


def one_round(running: Running) -> dict[str, float]:
    """From the end of training to an engine that is ready: `timing/refit`, its parts, and what was sent.

    `timing/policy_training/onload`: bringing back what the round before had moved.
    """
    timer = running.timer
    running.policy.weight_version += 1  # as an update does
    with timer.step() as times:
        with timer.phase("policy_training"):
            pass
        running.refit.ensure_current(timer)
        with timer.phase("generation"):
            pass
    moved = {name: value for name, value in times.items() if name.startswith(("timing/refit", ONLOAD))}
    return moved | running.refit.step_metrics()


def goal_s(config: Config, nbytes: float) -> tuple[str, float] | None:
    """What moving the bytes (without waking the engine) is held against on an H200; None on a CPU."""
    if not config.cluster.gpus_per_node:
        return None
    if config.policy.generation.colocated.enabled:
        return "20 ms + bytes / 1.05 TB/s", _SHARED_S + nbytes / _SHARED_BYTES_S
    return "bytes / (60 % of 369 GB/s)", nbytes / _BROADCAST_BYTES_S


def markdown(name: str, config: Config, measured: Sequence[Mapping[str, float]]) -> str:
    """Medians of the rounds after the first, with their least and most."""
    later = measured[1:]
    found = [part for part in PARTS if any(f"timing/refit/{part}" in each for each in measured)]
    lines = [
        f"# {name}", "", f"{len(later)} rounds after the first, ms.", "",
        "| | median | least | most | first round |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for label, key in [("whole", "timing/refit"), *((part, f"timing/refit/{part}") for part in found)]:
        lines.append(_row(label, [1000 * each.get(key, 0.0) for each in later], 1000 * measured[0].get(key, 0.0)))
    nbytes = later[0]["performance/refit_gib"] * 2**30
    moving = statistics.median(
        sum(each.get(f"timing/refit/{part}", 0.0) for part in ("export", "transfer", "load")) for each in later
    )
    messages = later[0].get("performance/refit_messages", 0)
    sent = f"{nbytes / 1e9:.3f} GB in {messages:.0f} messages to each engine rank"
    lines += ["", f"{sent}; {nbytes / 1e9 / moving:.1f} GB/s over export, transfer and load."]
    goal = goal_s(config, nbytes)
    if goal is not None:
        lines.append(f"Goal, {goal[0]}: {1000 * goal[1]:.1f} ms; measured {1000 * moving:.1f} ms.")
    return "\n".join(lines) + "\n"


def _row(label: str, values: Sequence[float], first: float) -> str:
    return f"| {label} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} | {first:.1f} |"


if __name__ == "__main__":
    typer.run(main)
