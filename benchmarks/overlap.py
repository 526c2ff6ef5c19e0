"""Asynchronous training against its bound, and against synchronous on the same devices: `python -m benchmarks.overlap`.

The bound: a step of asynchronous training can take no less than the slower of two things that are both measured alone
here, on the devices that the run has: the engine sampling a step's groups with its queue kept full while nobody trains,
and the policy training on such a step (log-probs, advantages, updates) while nothing is sampled. What a run takes
longer is waiting, refits and the loop. The three take turns within one run, and figures of one round are compared with
each other. Lengths are replayed, so that all of them sample the same distribution. Seconds are means: of work that a
buffer evens out, means bound the whole.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, NoReturn

import typer

from benchmarks.paired import Spread, ratios
from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.config.schema import Config
from grpo.rewards.scoring import Rewards
from grpo.rollout.replay.source import ReplaySource
from grpo.rollout.source import Rollout, RolloutSource
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.advantages import training_batch
from grpo.trainer.assemble import assembled
from grpo.trainer.loop import Trainer
from grpo.trainer.parts import Parts, StepObserver
from grpo.trainer.prepare import prepare

GOAL = 0.9  # of the bound
IDLE_WITHIN_S = 300.0
WARM_UP = 3  # steps of each stretch, in which the buffer empties or fills and kernels are compiled
ENDLESS = ("grpo.max_num_epochs=1000000", "grpo.max_num_steps=1000000", "grpo.val_period=0",
           "grpo.val_at_start=false", "grpo.val_at_end=false",
           "grpo.stop_at_reward=null", "checkpointing.enabled=false")  # fmt: skip
ASYNC = ("cluster.launcher=ray", "policy.generation.colocated.enabled=false", "grpo.async_grpo.enabled=true",
         "grpo.async_grpo.in_flight_weight_updates=true",
         "loss_fn.use_importance_sampling_correction=true", "loss_fn.force_on_policy_ratio=false")  # fmt: skip
SYNC = ("cluster.launcher=ray", "policy.generation.colocated.enabled=true", "grpo.async_grpo.enabled=false",
        "loss_fn.force_on_policy_ratio=false")  # fmt: skip


@dataclass(frozen=True)
class Round:
    """Mean seconds of a step, of three stretches one after another."""

    asynchronous: float
    generation: float  # the engine alone
    training: float  # the policy alone

    @property
    def bound(self) -> float:
        return max(self.generation, self.training)


@dataclass(frozen=True)
class Overlap:
    """What was measured."""

    rounds: Sequence[Round]
    synchronous: float | None  # mean seconds of a step on the same devices, both sharing them
    parts: Mapping[str, float]  # of the asynchronous steps, on average

    @property
    def reached(self) -> Spread:
        """The share of the bound's speed that the asynchronous run has, round by round."""
        return ratios([each.bound for each in self.rounds], [each.asynchronous for each in self.rounds])

    def middle(self, name: str) -> float:
        """The median of the rounds' `name`."""
        return median([float(getattr(each, name)) for each in self.rounds])

    def lines(self) -> list[str]:
        reached = self.reached
        asynchronous = self.middle("asynchronous")
        alone = f"engine alone {self.middle('generation'):.3f}, policy alone {self.middle('training'):.3f} s a step"
        spread = f"{reached.low:.1%} to {reached.high:.1%} in {len(self.rounds)} rounds"
        found = [
            f"{alone}: bound {self.middle('bound'):.3f} s",
            f"asynchronous {asynchronous:.3f} s a step: {reached.median:.1%} of the bound ({spread}; goal {GOAL:.0%})",
        ]
        if self.synchronous is not None:
            faster = self.synchronous / asynchronous
            found.append(f"synchronous {self.synchronous:.3f} s a step: asynchronous is {faster:.2f}x as fast")
        return found


def main(
    recipe: Annotated[str, typer.Argument(help="name or file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    *,
    steps: Annotated[int, typer.Option(min=1, help="of each stretch, after three to warm up")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="of three stretches")] = 3,
    only_async: Annotated[bool, typer.Option(help="leave out the synchronous run")] = False,
    sync_override: Annotated[list[str] | None, typer.Option(help="of the synchronous run alone")] = None,
    async_override: Annotated[list[str] | None, typer.Option(help="of the asynchronous run alone")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for overlap.json")] = None,
) -> None:
    """Exit code 1: less than the goal."""
    given = overrides or []
    shared = None if only_async else [*given, *SYNC, *(sync_override or [])]
    compare(recipe, [*given, *ASYNC, *(async_override or [])], shared, steps=steps, rounds=rounds, out=out)


def compare(
    recipe: str, separate: Sequence[str], shared: Sequence[str] | None, *, steps: int, rounds: int, out: Path | None
) -> NoReturn:
    """Measure and report, with the overrides of the asynchronous run and, unless None, of the synchronous one.

    Raises:
        typer.Exit: 1 for less than the goal, else 0.
    """
    found = measured(recipe, separate, steps, rounds, out)
    if shared is not None:
        found = replace(found, synchronous=synchronous(recipe, shared, steps))
        report(found, out)
    raise typer.Exit(found.reached.median < GOAL)


def report(found: Overlap, out: Path | None) -> None:
    """Said and written as soon as it is known."""
    typer.echo("\n".join(found.lines()))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "overlap.json").write_text(
            json.dumps({**asdict(found), "reached": asdict(found.reached)}, indent=1) + "\n"
        )


def measured(recipe: str, overrides: Sequence[str], steps: int, rounds: int, out: Path | None = None) -> Overlap:
    """An asynchronous run that is held again and again, while its engine and its policy work alone.

    Reported after every round.
    """
    observed, found = Observed(), []
    with started(recipe, overrides, observed) as (parts, config):
        trainer = Trainer(parts, config)
        for _ in range(rounds):
            rows = observed.train(trainer, WARM_UP + steps)[WARM_UP:]
            rollouts, generation = engine_alone(parts, steps)
            wait_until_idle(parts.source)
            training = policy_alone(parts, config, rollouts)
            sample_again(parts.source)
            found.append(Round(fmean(row["timing/total"] for row in rows), generation, training))
            names = [name for name in rows[-1] if name.startswith(("timing/", "rollout/"))]
            overlap = Overlap(tuple(found), None, {name: fmean(row.get(name, 0.0) for row in rows) for name in names})
            report(overlap, out)
    return overlap


def synchronous(recipe: str, overrides: Sequence[str], steps: int) -> float:
    """Mean seconds of a step of a synchronous run."""
    observed = Observed()
    with started(recipe, overrides, observed) as (parts, config):
        rows = observed.train(Trainer(parts, config), WARM_UP + steps)
    return fmean(row["timing/total"] for row in rows[WARM_UP:])


class Observed:
    """Sees the steps of a run, and holds it after so many."""

    def __init__(self) -> None:
        self._rows: list[Mapping[str, float]] = []
        self._stop = StopRequest()
        self._wanted = 0

    def __call__(self, _step: int, values: Mapping[str, float], /) -> None:
        self._rows.append(dict(values))
        if len(self._rows) >= self._wanted - 1:  # the loop tells of a step in the next one, which then is the last
            self._stop.requested = "enough steps"

    def train(self, trainer: Trainer, steps: int) -> list[Mapping[str, float]]:
        """The metrics of `steps` more, at least 2."""
        self._rows, self._stop, self._wanted = [], StopRequest(), steps
        trainer.run(self._stop)
        return self._rows


@contextmanager
def started(recipe: str, overrides: Sequence[str], observer: StepObserver) -> Iterator[tuple[Parts, Config]]:
    """The parts of a run without an end."""
    resolved = load_config(recipe, [*ENDLESS, *overrides])
    with (
        tempfile.TemporaryDirectory(prefix="grpo-overlap-") as folder,
        Rewards(resolved.config.env) as rewards,
        RunDirectory.open(
            Path(folder) / "run", "new", name="overlap", config_yaml=resolved.to_yaml(), command=[]
        ) as run,
        assembled(prepare(resolved), run, rewards, None, observers=(observer,)) as parts,
    ):
        yield parts, resolved.config


def engine_alone(parts: Parts, steps: int) -> tuple[list[Rollout], float]:
    """Steps' groups, taken as soon as they are there, and the mean seconds from one to the next."""
    rollouts, seconds = [], []
    timer = PhaseTimer()
    for _ in range(WARM_UP + steps):
        with timer.step() as times:
            rollout = parts.source.next_rollout(timer)
        if rollout is None:
            raise RuntimeError("the prompts are used up")
        rollouts.append(rollout)
        seconds.append(times["timing/total"])
    return rollouts[WARM_UP:], fmean(seconds[WARM_UP:])


def wait_until_idle(source: RolloutSource) -> None:
    """Until the engine has sampled all that it may begin. Raises RuntimeError if that takes minutes."""
    if not isinstance(source, ReplaySource):
        raise TypeError("only asynchronous rollouts run by themselves")
    ends = time.monotonic() + IDLE_WITHIN_S
    while source.running:
        if time.monotonic() > ends:
            raise RuntimeError(f"the engine still samples after {IDLE_WITHIN_S:.0f} s")
        time.sleep(0.05)


def policy_alone(parts: Parts, config: Config, rollouts: Sequence[Rollout]) -> float:
    """Mean seconds of training on a step's groups. Weights are updated, and the engine does not get them."""
    size, seconds = config.policy.train_global_batch_size, []
    timer = PhaseTimer()
    for rollout in rollouts:
        with timer.step() as times:
            batch, _ = training_batch(rollout.trajectories, parts.policy, config, timer)
            with timer.phase("policy_training"):
                for at in range(0, len(batch), size):
                    parts.policy.train(batch.select(range(at, min(at + size, len(batch)))))
        seconds.append(times["timing/total"])
    return fmean(seconds)


def sample_again(source: RolloutSource) -> None:
    """Have what waits sampled with the next weights: the updates since would make it too old."""
    _, values = source.state()
    waiting = [group["position"] for group in values["groups"]]
    buffer = {**values["buffer"], "again": sorted([*values["buffer"]["again"], *waiting])}
    source.load_state({}, {**values, "groups": [], "buffer": buffer})


if __name__ == "__main__":
    typer.run(main)
