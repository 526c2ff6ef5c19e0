"""A whole run: prepare, open the run directory, resume if there is something to resume, train, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from grpo.checkpoint.layout import step_folder
from grpo.checkpoint.manager import CheckpointManager, LatestOpen
from grpo.checkpoint.reading import OpenCheckpoint
from grpo.checkpoint.signals import StopRequest
from grpo.config import Config, ResolvedConfig
from grpo.errors import CheckpointError, ConfigError
from grpo.rewards.scoring import Rewards
from grpo.telemetry.console import RunConsole, StepPace
from grpo.telemetry.journal import read_journal
from grpo.telemetry.loggers import MetricLogger, build_loggers, close_all
from grpo.telemetry.reader import read_manifest
from grpo.telemetry.report import write_report
from grpo.telemetry.run_directory import Mode, RunDirectory
from grpo.trainer.assemble import assembled, checkpoint_manager
from grpo.trainer.canary import keep_canary
from grpo.trainer.held import HeldCheckpoints
from grpo.trainer.loop import Trainer
from grpo.trainer.prepare import Prepared, prepare
from grpo.trainer.progress import Outcome
from grpo.trainer.stopping import exit_code_of, longest_save_s
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
    resolved: ResolvedConfig, *, fresh: bool, quiet: bool, command: Sequence[str], stop: StopRequest,
    pace: StepPace | None = None,
) -> FinishedRun:  # fmt: skip
    """Train as configured; a run directory with a checkpoint is resumed unless `fresh` sets it aside.

    `stop` is entered by the caller, who has signals raise until the loop can save: from there on they are deferred.

    `pace` holds the steps against a reference, which the console shows.

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
        lock = stack.enter_context(HeldCheckpoints(checkpoints))
        if not fresh:
            lock.take_existing()
        held = stack.enter_context(ExitStack())  # what is resumed stays open until it has been read
        found = _find_checkpoint(held, checkpoints, directory, fresh=fresh)
        start = 0 if found.opened is None else found.opened.step
        ended_early = _ended_early(directory)
        _refuse_finished(found.opened, config.grpo.max_num_steps, ended_early=ended_early)
        restarted = not fresh and start == 0 and config.checkpointing.enabled and ended_early
        if fresh or restarted:
            lock.release()  # the folder goes with the run that is set aside
        with stop.held():
            run = stack.enter_context(_open(prepared, directory, start, fresh=fresh or restarted, command=command))
            stack.enter_context(_signals_on_record(run, stop))
        run.start_log()
        no_canary = keep_canary(config.cluster, run, os.environ)
        if checkpoints is not None:
            checkpoints.prepare()
        lock.take()
        console = stack.enter_context(
            RunConsole(
                max_steps=config.grpo.max_num_steps,
                first_step=start + 1,
                chance=prepared.chance,
                pace=pace,
                quiet=quiet,
            )
        )
        loggers = stack.enter_context(_loggers(config, directory, start, console.message))
        say, observers = console.message, (console.step, *(logger.log for logger in loggers))
        parts = stack.enter_context(
            assembled(prepared, run, rewards, checkpoints, observers=observers, say=say, before_save=lock.check)
        )
        trainer = Trainer(parts, config)
        if no_canary is not None:
            console.message(no_canary)
        if restarted:
            console.message("the earlier run here ended before its first checkpoint: kept beside it, begun anew")
        _tell_what_was_found(run, console, found, None if fresh else _missing_save(found, directory))
        if found.opened is not None:
            trainer.load(found.opened)
            console.message(f"resuming after step {start} from {found.opened.path}")
        held.close()
        console.header(_header(prepared, directory))
        console.start()
        started = time.perf_counter()
        stop.defer()
        outcome = trainer.run(stop, longest_save_s=longest_save_s(directory))
        seconds = time.perf_counter() - started
        console.close()
        _finish(run, outcome)
    report, _ = write_report(directory)
    return FinishedRun(outcome, directory, report, prepared.chance, seconds)


def _finish(run: RunDirectory, outcome: Outcome) -> None:
    if outcome.stopped_by is None:
        run.finish("completed", reason=outcome.reason)
        return
    code = exit_code_of(outcome.stopped_by, saved=outcome.saved, steps=outcome.steps)
    run.write_event("stop_requested", reason=outcome.stopped_by, step=outcome.steps)
    run.finish("stopped", reason=outcome.stopped_by, exit_code=code)


@contextmanager
def _signals_on_record(run: RunDirectory, stop: StopRequest) -> Iterator[None]:
    """Have the manifest say of a run that a signal ends before its first step what its exit code says."""
    try:
        yield
    except KeyboardInterrupt as error:
        name = stop.raised(error)
        if name is not None:
            run.finish("stopped", reason=name, exit_code=exit_code_of(name, saved=False, steps=0))
        raise


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
        _look_up_last_save(checkpoints, directory)
        return held.enter_context(checkpoints.open_latest())
    outside = directory not in checkpoints.directory.absolute().parents
    if outside and checkpoints.list():
        raise CheckpointError(
            f"checkpointing.checkpoint_dir={checkpoints.directory} holds checkpoints of an earlier run, and --fresh "
            "sets aside the run directory alone: name another folder, or resume by leaving out --fresh"
        )
    return LatestOpen(None, ())


def _last_save(directory: Path) -> int | None:
    """The step of the last save that a run tells of."""
    events = read_journal(directory / "events.jsonl")
    return next((int(event["step"]) for event in reversed(events) if event["kind"] == "checkpoint"), None)


def _look_up_last_save(checkpoints: CheckpointManager, directory: Path) -> None:
    """Ask for the last save by its name: a network file system may list a folder as it was half a minute ago."""
    step = _last_save(directory)
    if step is not None:
        with suppress(OSError):
            step_folder(checkpoints.directory, step).stat()


def _missing_save(found: LatestOpen, directory: Path) -> str | None:
    """What to say if the last save that the run tells of is neither resumed nor refused."""
    step = _last_save(directory)
    there = {refused.path.name for refused in found.refused}
    if found.opened is not None:
        there.add(found.opened.path.name)
    if step is None or f"step_{step}" in there:
        return None
    return f"the checkpoint of step {step}, which this run saved last, is not there any more"


def _tell_what_was_found(run: RunDirectory, console: RunConsole, found: LatestOpen, missing: str | None) -> None:
    if missing is not None:
        run.write_event("warning", message=missing)
        console.message(missing)
    for refused in found.refused:
        run.write_event("checkpoint_refused", path=str(refused.path), reason=refused.reason)
        console.message(f"checkpoint refused: {refused.reason}")


def _refuse_finished(found: OpenCheckpoint | None, wanted: int, *, ended_early: bool) -> None:
    done = 0 if found is None else found.step
    to_end = done == wanted and ended_early  # stopped or killed after its last save
    if done >= wanted and not to_end:
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
