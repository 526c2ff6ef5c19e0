"""The directory that every run writes: what the report draws and the judge decides from."""

import logging
import numbers
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from grpo.errors import GrpoError, TelemetryError
from grpo.telemetry import lock, manifest
from grpo.telemetry.environment import describe_environment, describe_node, git_state, grpo_version, this_process
from grpo.telemetry.events import EventKind
from grpo.telemetry.journal import (
    JournalWriter,
    disk_error,
    read_journal,
    replace_json,
    replace_text,
    set_aside,
    set_torn_aside,
)
from grpo.telemetry.lock import DirectoryLock
from grpo.telemetry.logs import start_log
from grpo.telemetry.manifest import Manifest, Resume, State
from grpo.telemetry.reader import read_manifest
from grpo.telemetry.secrets import Redactor, secret_values

Mode = Literal["new", "fresh", "resume"]
LENGTHS = "lengths.jsonl"


class RunDirectory:
    """Writes one run. `open` is the way to make one; `finish` or leaving the context ends it.

    manifest.json, config.yaml, environment.json, nodes.json   written whole, replaced whole
    metrics.jsonl, events.jsonl, samples.jsonl, ranks.jsonl     one object a line, on disk when the call returns
    lengths.jsonl                                               the same: completion lengths, for others to replay
    logs/rank-<n>.log                                           capped, rotated

    Every method that writes raises TelemetryError naming the path when the disk is full or read-only; what was written
    before stays readable. Known secrets are removed from every text.
    """

    path: Path
    run_id: str

    def __init__(self, path: Path, record: Manifest, held: DirectoryLock, redactor: Redactor) -> None:
        self.path = path
        self.run_id = record.run_id
        self._manifest = record
        self._lock = held
        self._redactor = redactor
        self._metrics = JournalWriter(path / "metrics.jsonl")
        self._events = JournalWriter(path / "events.jsonl")
        self._samples: JournalWriter | None = None
        self._ranks: JournalWriter | None = None
        self._lengths: JournalWriter | None = None
        self._log: logging.Handler | None = None
        self._last_step = -1
        self._finished = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        mode: Mode,
        *,
        name: str,
        config_yaml: str,
        command: Sequence[str],
        resume_step: int | None = None,
        facts: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Create the directory, or go on in it.

        mode "new": refuse a directory that holds a run. "fresh": rename the run that is there to `<path>.1` (or the
        next free number) and begin anew. "resume": go on after `resume_step`, the step of the loaded checkpoint;
        metrics, samples, ranks' seconds and lengths of later steps move to `*.discarded.jsonl`.
        `facts` go into the manifest for the report: recipe, model, parameters, device, max_steps, chance, ...
        Raises TelemetryError: a directory that is not a run's and not empty, one in use, one that cannot be written.
        """
        directory = Path(path).absolute()
        redactor = Redactor.from_environment(environ)
        redactor.add(secret_values(command))
        if (mode == "resume") != (resume_step is not None):
            raise ValueError("resume_step belongs to mode 'resume'")
        has_run = _holds_run(directory)
        if mode == "resume" and not has_run:
            raise TelemetryError(f"cannot resume {directory}: there is no run in it (no manifest.json)")
        if mode == "new" and has_run:
            raise TelemetryError(
                f"{directory} holds a run already: resume it, set it aside by starting fresh, or choose another folder "
                "with logger.log_dir"
            )
        if mode == "fresh" and has_run:
            _rename_aside(directory)
        _make(directory)
        held = DirectoryLock(directory)
        try:
            cleaned = redactor.command(command)
            if resume_step is not None:
                set_torn_aside(directory / "events.jsonl")
                record = _resumed(directory, resume_step, cleaned, facts)
            else:
                record = _new_manifest(name, cleaned, facts)
            record = Manifest.model_validate(redactor.json(record.model_dump()))
            record.write(directory)
            run = cls(directory, record, held, redactor)
        except BaseException:
            held.release()
            raise
        run._begin(config_yaml, resume_step)
        return run

    def _begin(self, config_yaml: str, resume_step: int | None) -> None:
        config = self._redactor.config(config_yaml)
        kept = self._write_config(config)
        replace_json(self.path / "environment.json", self._redactor.json(describe_environment()))
        self.write_nodes([describe_node()])
        if resume_step is None:
            self.write_event("started")
            return
        discarded = {
            f"discarded_{file}": set_aside(self.path / f"{file}.jsonl", after_step=resume_step)
            for file in ("metrics", "samples", "ranks", "lengths")
        }
        self._metrics.close()
        self._metrics = JournalWriter(self.path / "metrics.jsonl")
        self._last_step = max((line["step"] for line in read_journal(self.path / "metrics.jsonl")), default=-1)
        self.write_event("resumed", step=resume_step, earlier_config=kept, **discarded)

    def _write_config(self, text: str) -> str | None:
        """Write config.yaml; the name under which a differing earlier one was kept."""
        path = self.path / "config.yaml"
        content = f"# schema_version: 1\n{text}"
        earlier = path.read_text(encoding="utf-8") if path.is_file() else content
        replace_text(path, content)
        if earlier == content:
            return None
        kept = self.path / f"config.{len(self._manifest.resumes)}.yaml"
        replace_text(kept, earlier)
        return kept.name

    @property
    def last_step(self) -> int:
        """The step of the last metrics line; -1 before the first. A kill may have lost the line of the resumed step."""
        return self._last_step

    def write_metrics(self, step: int, values: Mapping[str, float | None]) -> None:
        """One line of metrics.jsonl. Steps ascend. NaN and infinity are kept (as strings); None means not measured.

        Raises TypeError, naming the metric, for anything that is not a number: tensors are the caller's to convert, at
        the one place where the device is waited for. Raises TelemetryError if another run has taken the directory.
        """
        if step <= self._last_step:
            raise ValueError(f"metrics of step {step} after those of step {self._last_step}")
        self._lock.check()
        self._metrics.append({"step": step, **{name: _number(name, value) for name, value in values.items()}})
        self._last_step = step

    def write_event(self, kind: EventKind, **fields: Any) -> None:
        """One line of events.jsonl: time, kind, and JSON fields (`step` where it belongs to one)."""
        self._events.append({"time": time.time(), "kind": kind, **self._redactor.json(fields)})

    def write_sample(self, step: int, **fields: Any) -> None:
        """One line of samples.jsonl: a prompt with its completion and reward, for people to read."""
        if self._samples is None:
            self._samples = JournalWriter(self.path / "samples.jsonl")
        self._samples.append({"step": step, **self._redactor.json(fields)})

    def write_ranks(self, step: int, hosts: Sequence[str], seconds: Mapping[str, Sequence[float]]) -> None:
        """One line of ranks.jsonl: each rank's machine, and by timing metric the seconds of each rank in that step."""
        if self._ranks is None:
            self._ranks = JournalWriter(self.path / "ranks.jsonl")
        self._ranks.append({"step": step, "hosts": list(hosts), **{name: list(each) for name, each in seconds.items()}})

    def write_lengths(self, step: int, lengths: Sequence[int]) -> None:
        """One line of lengths.jsonl: tokens of each completion that was trained on, in the batch's order."""
        if self._lengths is None:
            self._lengths = JournalWriter(self.path / LENGTHS)
        self._lengths.append({"step": step, "lengths": list(lengths)})

    def write_nodes(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Replace nodes.json: one entry a host, as `describe_node` gives it. Opening writes the own host."""
        replace_json(self.path / "nodes.json", {"nodes": self._redactor.json(list(nodes))})

    def add_facts(self, **facts: Any) -> None:
        """Add to the manifest's facts what is known only after the start, for example the parameter count."""
        self._manifest.facts.update(self._redactor.json(facts))
        self._manifest.write(self.path)

    def start_log(self, rank: int = 0, *, level: int = logging.INFO) -> Path:
        """Send the `grpo` loggers' records to logs/rank-<rank>.log until the run ends."""
        path = self.path / "logs" / f"rank-{rank}.log"
        self._log = start_log(path, self._redactor, level)
        return path

    def finish(self, state: State, *, reason: str | None = None, exit_code: int = 0) -> None:
        """Write the outcome, close every file, give the directory free. The first call counts."""
        if self._finished:
            return
        self._finished = True
        try:
            reason = None if reason is None else self._redactor.text(reason)
            self.write_event("ended", state=state, reason=reason, exit_code=exit_code, step=max(self._last_step, 0))
            self._manifest = self._manifest.model_copy(
                update={
                    "state": state,
                    "reason": reason,
                    "exit_code": exit_code,
                    "ended": time.time(),
                    "last_step": self._last_step if self._last_step >= 0 else None,
                }
            )
            self._manifest.write(self.path)
        finally:
            self._close()

    def _close(self) -> None:
        if self._log is not None:
            logging.getLogger("grpo").removeHandler(self._log)
            self._log.close()
        try:
            for journal in (self._metrics, self._events, self._samples, self._ranks, self._lengths):
                if journal is not None:
                    journal.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """An exception that reaches here fails the run; call `finish` before, to say otherwise."""
        if error is None:
            self.finish("completed")
        elif isinstance(error, KeyboardInterrupt):
            self.finish("stopped", reason=str(error) or "interrupted", exit_code=130)
        else:
            code = error.exit_code if isinstance(error, GrpoError) else 1
            self.finish("failed", reason=f"{type(error).__name__}: {error}", exit_code=code)


def _number(name: str, value: Any) -> float | int | None:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"metric {name!r} is a {type(value).__name__}; valid: a number or None")


def _holds_run(directory: Path) -> bool:
    """Whether a run is there. Raises TelemetryError for a file, or a directory of something else."""
    try:
        names = {entry.name for entry in directory.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise TelemetryError(f"{directory} is a file; logger.log_dir must be a folder") from error
    except OSError as error:
        raise TelemetryError(f"cannot read {directory}: {error.strerror}") from error
    if manifest.FILE_NAME in names:
        read_manifest(directory)
        return True
    # What a run leaves that ended before its manifest was written.
    begun = {lock.FILE_NAME, f"{manifest.FILE_NAME}.tmp"}
    if "logs" in names and not any((directory / "logs").iterdir()):
        begun.add("logs")
    others = sorted(names - begun)
    if others:
        raise TelemetryError(
            f"{directory} is not empty and no run directory of grpo (it has {others[0]!r} and no manifest.json): "
            "choose another folder with logger.log_dir"
        )
    return False


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        (directory / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise disk_error(error, directory) from error


def _rename_aside(directory: Path) -> Path:
    held = DirectoryLock(directory)
    try:
        number = 1
        while (target := directory.with_name(f"{directory.name}.{number}")).exists():
            number += 1
        directory.rename(target)
    except OSError as error:
        raise disk_error(error, directory) from error
    finally:
        held.release()
    return target


def _new_manifest(name: str, command: list[str], facts: Mapping[str, Any] | None) -> Manifest:
    commit, dirty = git_state()
    now = time.time()
    return Manifest(
        run_id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{uuid.uuid4().hex[:8]}",
        name=name,
        command=command,
        started=now,
        grpo_version=grpo_version(),
        git_commit=commit,
        git_dirty=dirty,
        facts=dict(facts or {}),
        host=os.uname().nodename,
        **this_process(),
    )


def _resumed(directory: Path, step: int, command: list[str], facts: Mapping[str, Any] | None) -> Manifest:
    earlier = read_manifest(directory)
    return earlier.model_copy(
        update={
            "state": "running",
            "ended": None,
            "reason": None,
            "exit_code": None,
            "last_step": None,
            "host": os.uname().nodename,
            **this_process(),
            "resumes": [*earlier.resumes, Resume(time=time.time(), step=step, command=command)],
            "facts": {**earlier.facts, **(facts or {})},
        }
    )
