"""A whole run: prepare, open the run directory, resume if there is something to resume, train, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo.checkpoint.manager import CheckpointManager, LatestOpen
from grpo.checkpoint.signals import StopRequest
from grpo.config import Config, ResolvedConfig
from grpo.errors import CheckpointError, ConfigError
from grpo.rewards.scoring import Rewards
from grpo.telemetry.console import RunConsole
from grpo.telemetry.loggers import MetricLogger, build_loggers, close_all
from grpo.telemetry.reader import read_manifest
from grpo.telemetry.report import write_report
from grpo.telemetry.run_directory import Mode, RunDirectory
from grpo.trainer.assemble import assembled, checkpoint_manager
from grpo.trainer.canary import keep_canary
from grpo.trainer.loop import Outcome, Trainer
from grpo.trainer.prepare import Prepared, prepare
from grpo.trainer.supported import device_of


@dataclass(frozen=True)
class FinishedRun:
    """How a run ended and where it lies."""

    outcome: Outcome
    directory: Path
    report: Path
    chance: float | None
    seconds: float  # of training, validation and checkpoints; without start-up

    @property
    def summary(self) -> str:
        """One line for people and scripts."""
        accuracy = "not measured" if self.outcome.accuracy is None else f"{self.outcome.accuracy:.2f}"
        chance = "" if self.chance is None else f" (chance {self.chance:.2f})"
        return f"accuracy {accuracy}{chance} after {self.outcome.steps} steps in {self.seconds:.0f} s"


def train(
    resolved: ResolvedConfig, *, fresh: bool, quiet: bool, command: Sequence[str], stop: StopRequest
) -> FinishedRun:
    """Train as configured; a run directory with a checkpoint is resumed unless `fresh` sets it aside.

    `stop` is entered by the caller, who has signals raise until the loop can save: from there on they are deferred.

    Raises:
        Interrupted: a signal came before the first step.
        GrpoError: anything that the user can mend, before training starts wherever it can be known.
    """
    config = resolved.config
    with ExitStack() as stack:
        rewards = stack.enter_context(Rewards(config.env, wait=False))
        prepared = prepare(resolved)
        rewards.wait_until_ready()
        directory = Path(config.logger.log_dir).absolute()
        checkpoints = checkpoint_manager(prepared, directory)
        held = stack.enter_context(ExitStack())  # what is resumed stays open until it has been read
        found = _find_checkpoint(held, checkpoints, directory, fresh=fresh)
        start = 0 if found.opened is None else found.opened.step
        _refuse_finished(start, config.grpo.max_num_steps)
        restarted = not fresh and start == 0 and config.checkpointing.enabled and _ended_early(directory)
        run = stack.enter_context(_open(prepared, directory, start, fresh=fresh or restarted, command=command))
        run.start_log()
        no_canary = keep_canary(config.cluster, run, os.environ)
        if checkpoints is not None:
            checkpoints.prepare()
        console = stack.enter_context(
            RunConsole(max_steps=config.grpo.max_num_steps, first_step=start + 1, chance=prepared.chance, quiet=quiet)
        )
        loggers = stack.enter_context(_loggers(config, directory, start, console.message))
        parts = stack.enter_context(
            assembled(
                prepared,
                run,
                rewards,
                checkpoints,
                observers=(console.step, *(logger.log for logger in loggers)),
                say=console.message,
            )
        )
        trainer = Trainer(parts, config)
        if no_canary is not None:
            console.message(no_canary)
        if restarted:
            console.message("the earlier run here ended before its first checkpoint: kept beside it, begun anew")
        for refused in found.refused:
            run.write_event("checkpoint_refused", path=str(refused.path), reason=refused.reason)
            console.message(f"checkpoint refused: {refused.reason}")
        if found.opened is not None:
            trainer.load(found.opened)
            console.message(f"resuming after step {start} from {found.opened.path}")
        held.close()
        console.header(_header(prepared, directory))
        console.start()
        started = time.perf_counter()
        stop.defer()
        outcome = trainer.run(stop)
        seconds = time.perf_counter() - started
        console.close()
        if outcome.reason == "signal":
            run.write_event("stop_requested", reason=outcome.signal, step=outcome.steps)
            run.finish("stopped", reason=outcome.signal)
        else:
            run.finish("completed", reason=outcome.reason)
    report, _ = write_report(directory)
    return FinishedRun(outcome, directory, report, prepared.chance, seconds)


@contextmanager
def _loggers(config: Config, directory: Path, start: int, say: Callable[[str], None]) -> Iterator[list[MetricLogger]]:
    """The loggers, closed at the end; the commands that show or send what they logged are said then."""
    loggers = build_loggers(
        config.logger, directory, name=directory.name, run_config=config.model_dump(), resume_step=start or None
    )
    try:
        yield loggers
    except BaseException:
        close_all(loggers, failed=True)
        raise
    for shown in close_all(loggers, failed=False):
        say(shown)


def _find_checkpoint(
    held: ExitStack, checkpoints: CheckpointManager | None, directory: Path, *, fresh: bool
) -> LatestOpen:
    if checkpoints is None:
        return LatestOpen(None, ())
    if not fresh:
        if checkpoints.directory.is_dir():
            checkpoints.prepare()  # finishes what a kill has left half done, so that paths stay what they are
        return held.enter_context(checkpoints.open_latest())
    outside = directory not in checkpoints.directory.absolute().parents
    if outside and checkpoints.list():
        raise CheckpointError(
            f"checkpointing.checkpoint_dir={checkpoints.directory} holds checkpoints of an earlier run, and --fresh "
            "sets aside the run directory alone: name another folder, or resume by leaving out --fresh"
        )
    return LatestOpen(None, ())


def _refuse_finished(done: int, wanted: int) -> None:
    if done >= wanted:
        raise ConfigError(
            f"grpo.max_num_steps={wanted}: this run has {done} steps already; raise it to train on, or start again "
            "with --fresh, which keeps the finished run beside the new one"
        )


def _open(prepared: Prepared, directory: Path, start: int, *, fresh: bool, command: Sequence[str]) -> RunDirectory:
    config = prepared.config
    resuming = start > 0 and (directory / "manifest.json").is_file()
    mode: Mode = "fresh" if fresh else "resume" if resuming else "new"
    return RunDirectory.open(
        directory,
        mode,
        name=directory.name,
        config_yaml=prepared.resolved.to_yaml(),
        command=command,
        resume_step=start if resuming else None,
        facts={
            "model": config.policy.model_name,
            "device": device_of(config),
            "max_steps": config.grpo.max_num_steps,
            "chance": prepared.chance,
            "train_prompts": len(prepared.train.prompts),
            "dropped_prompts": prepared.train.dropped_too_long,
            "shared_prompts": prepared.shared_prompts,
            "validation_prompts": 0 if prepared.validation is None else len(prepared.validation.prompts),
        },
    )


def _ended_early(directory: Path) -> bool:
    """Whether a run is there that was stopped, failed or was killed, or is still going, which opening it refuses."""
    return (directory / "manifest.json").is_file() and read_manifest(directory).state != "completed"


def _header(prepared: Prepared, directory: Path) -> dict[str, str]:
    config = prepared.config
    start = "random weights" if config.policy.random_weights else str(prepared.model_path)
    left_out = [
        f", {count} left out {why}"
        for count, why in (
            (prepared.train.dropped_too_long, "as too long"),
            (prepared.shared_prompts, "because validation has them"),
        )
        if count
    ]
    return {
        "model": f"{config.policy.model_name} ({start}), {config.policy.precision} on {device_of(config)}",
        "engine": config.policy.generation.backend,
        "step": f"{config.grpo.num_prompts_per_step} prompts x {config.grpo.num_generations_per_prompt} completions",
        "data": f"{len(prepared.train.prompts)} prompts{''.join(left_out)}",
        "run": str(directory),
    }
