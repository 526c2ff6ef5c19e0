"""Asynchronous training against its bound, and against synchronous on the same devices: `python -m benchmarks.overlap`.

The bound: a step of asynchronous training can take no less than the slower of two things that are both measured alone
here, on the devices that the run has: the engine sampling a step's groups with its queue kept full while nobody trains,
and the policy training on such a step (log-probs, advantages, updates) while nothing is sampled. What a run takes
longer is waiting, refits and the loop. Lengths are replayed, so that every run samples the same distribution.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.config.schema import Config
from grpo.rewards.scoring import Rewards
from grpo.rollout.source import Rollout
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.advantages import training_batch
from grpo.trainer.assemble import assembled
from grpo.trainer.loop import Trainer
from grpo.trainer.parts import Parts
from grpo.trainer.prepare import prepare

GOAL = 0.9  # of the bound
WARM_UP = 3  # steps, in which the buffer fills and kernels are compiled
ENDLESS = ("grpo.max_num_epochs=1000000", "grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false",
           "grpo.stop_at_reward=null", "checkpointing.enabled=false")  # fmt: skip
ASYNC = ("cluster.launcher=ray", "policy.generation.colocated.enabled=false", "grpo.async_grpo.enabled=true",
         "loss_fn.use_importance_sampling_correction=true", "loss_fn.force_on_policy_ratio=false")  # fmt: skip
SYNC = ("cluster.launcher=ray", "policy.generation.colocated.enabled=true", "grpo.async_grpo.enabled=false",
        "loss_fn.force_on_policy_ratio=false")  # fmt: skip


@dataclass(frozen=True)
class Overlap:
    """Median seconds of a step."""

    generation: float  # the engine alone
    training: float  # the policy alone
    asynchronous: float
    synchronous: float | None  # on the same devices, both sharing them
    parts: Mapping[str, float]  # of the asynchronous step

    @property
    def bound(self) -> float:
        return max(self.generation, self.training)

    @property
    def reached(self) -> float:
        """The share of the bound's speed that the asynchronous run has."""
        return self.bound / self.asynchronous

    def lines(self) -> list[str]:
        found = [
            f"engine alone {self.generation:.3f}, policy alone {self.training:.3f} s a step: bound {self.bound:.3f} s",
            f"asynchronous {self.asynchronous:.3f} s a step: {self.reached:.1%} of the bound (goal {GOAL:.0%})",
        ]
        if self.synchronous is not None:
            faster = self.synchronous / self.asynchronous
            found.append(f"synchronous {self.synchronous:.3f} s a step: asynchronous is {faster:.2f}x as fast")
        return found


def main(
    recipe: Annotated[str, typer.Argument(help="name or file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    *,
    steps: Annotated[int, typer.Option(min=1, help="of each kind, after three to warm up")] = 8,
    only_async: Annotated[bool, typer.Option(help="leave out the synchronous run")] = False,
    sync_override: Annotated[list[str] | None, typer.Option(help="of the synchronous run alone")] = None,
    async_override: Annotated[list[str] | None, typer.Option(help="of the asynchronous run alone")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for overlap.json")] = None,
) -> None:
    """Exit code 1: less than the goal."""
    given = [*(overrides or []), f"grpo.max_num_steps={WARM_UP + steps}"]
    found = measured(recipe, [*given, *ASYNC, *(async_override or [])], steps)
    report(found, out)
    if not only_async:
        sync = synchronous(recipe, [*given, *SYNC, *(sync_override or [])])
        found = Overlap(found.generation, found.training, found.asynchronous, sync, found.parts)
        report(found, out)
    raise typer.Exit(found.reached < GOAL)


def report(found: Overlap, out: Path | None) -> None:
    """Said and written as soon as it is known."""
    typer.echo("\n".join(found.lines()))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        values = {**asdict(found), "bound": found.bound, "reached": found.reached}
        (out / "overlap.json").write_text(json.dumps(values, indent=1) + "\n")


def measured(recipe: str, overrides: Sequence[str], steps: int) -> Overlap:
    """An asynchronous run, and then engine and policy alone, as they are."""
    rows: list[Mapping[str, float]] = []
    with started(recipe, overrides, rows) as (parts, config):
        Trainer(parts, config).run(StopRequest())
        rollouts, generation = engine_alone(parts, steps)
        training = policy_alone(parts, config, rollouts)
    kept = rows[WARM_UP:]
    names = [name for name in kept[-1] if name.startswith(("timing/", "rollout/"))]
    medians = {name: median(row.get(name, 0.0) for row in kept) for name in names}
    return Overlap(generation, training, medians["timing/total"], None, medians)


def synchronous(recipe: str, overrides: Sequence[str]) -> float:
    """Seconds of a step of a synchronous run."""
    rows: list[Mapping[str, float]] = []
    with started(recipe, overrides, rows) as (parts, config):
        Trainer(parts, config).run(StopRequest())
    return median(row["timing/total"] for row in rows[WARM_UP:])


@contextmanager
def started(recipe: str, overrides: Sequence[str], rows: list[Mapping[str, float]]) -> Iterator[tuple[Parts, Config]]:
    """The parts of a run; every step's metrics go into `rows`."""
    resolved = load_config(recipe, [*ENDLESS, *overrides])
    with (
        tempfile.TemporaryDirectory(prefix="grpo-overlap-") as folder,
        Rewards(resolved.config.env) as rewards,
        RunDirectory.open(
            Path(folder) / "run", "new", name="overlap", config_yaml=resolved.to_yaml(), command=[]
        ) as run,
        assembled(
            prepare(resolved), run, rewards, None, observers=(lambda _step, values: rows.append(dict(values)),)
        ) as parts,
    ):
        yield parts, resolved.config


def engine_alone(parts: Parts, steps: int) -> tuple[list[Rollout], float]:
    """Steps' groups, taken as soon as they are there, and the median seconds from one to the next."""
    rollouts, seconds = [], []
    timer = PhaseTimer()
    for _ in range(WARM_UP + steps):
        with timer.step() as times:
            rollout = parts.source.next_rollout(timer)
        if rollout is None:
            raise RuntimeError("the prompts are used up")
        rollouts.append(rollout)
        seconds.append(times["timing/total"])
    parts.source.close()
    return rollouts[WARM_UP:], median(seconds[WARM_UP:])


def policy_alone(parts: Parts, config: Config, rollouts: Sequence[Rollout]) -> float:
    """Median seconds of training on a step's groups."""
    size, seconds = config.policy.train_global_batch_size, []
    timer = PhaseTimer()
    for rollout in rollouts:
        with timer.step() as times:
            batch, _ = training_batch(rollout.trajectories, parts.policy, config, timer)
            with timer.phase("policy_training"):
                for at in range(0, len(batch), size):
                    parts.policy.train(batch.select(range(at, min(at + size, len(batch)))))
        seconds.append(times["timing/total"])
    return median(seconds)


if __name__ == "__main__":
    typer.run(main)
