"""Kills whole runs with SIGKILL, at chosen changes of the disk or at random times, and has them go on.

A process of its own (`python -m tests.support.kill_harness FOLDER`): it imports everything, starts no thread, and forks
each run from there, so that a run costs a fraction of a second. The plan comes as JSON on the standard input, one line
of JSON for each case goes to the standard output.

An instant is a change to the disk, which a write is killed in the middle of and any other is killed before, or a share
of the time that an uninterrupted run takes. Writes to one file that follow each other count as one change.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

REPOSITORY = Path(__file__).parents[2]
STEPS = 5
OPTIONS = (
    f"grpo.max_num_steps={STEPS}", "grpo.val_period=2", "checkpointing.save_period=1", "checkpointing.keep_latest=1",
    "checkpointing.keep_top_k=1",
)  # fmt: skip
CHANGES = ("open", "write", "pwrite", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate")
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Plan:
    """Runs with `overrides`, each of them killed at one instant and then going on, unless it is killed once more.

    changes: "each" change, or "kinds": of each kind of change one.
    times: how many random times.
    twice: how many are killed at a random change, and again while they go on.
    """

    overrides: tuple[str, ...] = ()
    changes: Literal["none", "kinds", "each"] = "none"
    times: int = 0
    twice: int = 0
    seed: int = 0


@dataclass
class Result:
    kills: list[int | float]
    died: list[str] = field(default_factory=list)  # where each run was when it was killed; "ended" if it was not
    problem: str | None = None  # why the run that went on is not the uninterrupted one


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run: its folder, the changes that it made to the disk, in order, and how long it took."""

    directory: Path
    changes: list[str]
    seconds: float

    @property
    def instants(self) -> list[int]:
        """Indices of changes; of writes to a file that follow each other the first and the middle one."""
        found, start = [], 0
        for end in range(1, len(self.changes) + 1):
            if end == len(self.changes) or self.changes[end] != self.changes[start]:
                found += sorted({start, (start + end) // 2})
                start = end
        return found

    def kinds(self, chance: random.Random) -> list[int]:
        """One of each kind of change: the same operation on the same file of whichever step."""
        by_kind: dict[str, list[int]] = {}
        for index in self.instants:
            by_kind.setdefault(re.sub("[0-9]+", "N", self.changes[index]), []).append(index)
        return sorted(chance.choice(indices) for indices in by_kind.values())


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Changes:
    """Counts this process's changes to a folder and, where told, kills it, or others, in the middle of one."""

    def __init__(
        self, folder: Path, log: int, kill_at: int | None, kill: Callable[[], None] = kill_this_process
    ) -> None:
        self._prefix = str(folder)
        self._log, self._kill_at, self._kill = log, kill_at, kill
        self.count = 0
        for name in CHANGES:
            setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any], write: Callable[..., Any] = os.write) -> Callable[..., Any]:
        def change(target: Any, *rest: Any, **keywords: Any) -> Any:
            reads = name == "open" and not rest[0] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            path = None if reads else _path_of(target)
            if path is None or not path.startswith(self._prefix):
                return real(target, *rest, **keywords)
            where, self.count = self.count, self.count + 1
            write(self._log, f"{name} {path.removeprefix(self._prefix).lstrip('/')}\n".encode())
            if where == self._kill_at:
                if name in ("write", "pwrite") and len(rest[0]) > 1:
                    written = real(target, rest[0][: len(rest[0]) // 2], *rest[1:])
                    self._kill()
                    return written  # where it was another process: the caller writes the rest
                self._kill()
            return None if name == "fsync" else real(target, *rest, **keywords)  # the page cache outlives the process

        return change


def _path_of(target: Any) -> str | None:
    if not isinstance(target, int):
        return os.path.abspath(os.fspath(target))  # noqa: PTH100 (as the program has it, links not followed)
    try:
        return os.readlink(f"/proc/self/fd/{target}")  # noqa: PTH115
    except OSError:
        return None


def run_plans(folder: Path, plans: list[Plan], *, timeout_s: float) -> list[Result]:
    """Run the harness in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.kill_harness", str(folder)],
        input=json.dumps([asdict(plan) for plan in plans]), text=True, capture_output=True, timeout=timeout_s,
        check=False, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return [Result(**json.loads(line)) for line in process.stdout.splitlines()]


def main() -> None:
    folder = Path(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    import tests.support.quick_run
    import tests.support.run_contents  # noqa: F401

    _keep_prompts()
    for number, line in enumerate(json.load(sys.stdin)):
        plan = Plan(**{**line, "overrides": tuple(line["overrides"])})
        reference = _reference(folder / f"{number}-whole", plan.overrides)
        for count, kills in enumerate(_cases(plan, reference)):
            result = _run(folder / f"{number}-{count}", kills, plan.overrides, reference)
            print(json.dumps(asdict(result)), flush=True)  # noqa: T201


def _keep_prompts() -> None:
    """The same for every run, and a third of its time."""
    from grpo.data import tasks

    largest = functools.cache(tasks._largest_balanced)
    tasks._largest_balanced = lambda capacities: largest(tuple(capacities))
    tasks._prompts_by_answer = functools.cache(tasks._prompts_by_answer)
    for split in ("train", "heldout"):
        tasks.largest_digit(split, 10)


def _cases(plan: Plan, reference: Reference) -> Iterator[list[int | float]]:
    chance = random.Random(plan.seed)
    if plan.changes != "none":
        yield from ([index] for index in (reference.instants if plan.changes == "each" else reference.kinds(chance)))
    yield from ([chance.random()] for _ in range(plan.times))
    for _ in range(plan.twice):
        yield [chance.choice(reference.instants), chance.randrange(len(reference.changes) // 2)]


def _reference(directory: Path, overrides: tuple[str, ...]) -> Reference:
    started = time.monotonic()
    status, log = _forked(directory, lambda: _train(directory, overrides), None, None)
    assert status == 0, log
    return Reference(directory, log, time.monotonic() - started)


def _run(directory: Path, kills: list[int | float], overrides: tuple[str, ...], reference: Reference) -> Result:
    result = Result(kills)
    for kill in kills:
        at = kill if isinstance(kill, int) else None
        after = kill * reference.seconds if isinstance(kill, float) else None
        status, log = _forked(directory, lambda: _train(directory, overrides), at, after)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not killed and status != 0:
            result.problem = "\n".join(log[-40:])
            return result
        result.died.append((log[-1] if log else "before the first change") if killed else "ended")
        if not killed:
            break
    status, log = _forked(directory, lambda: _go_on(directory, overrides, reference), None, None)
    if status != 0:
        result.problem = "\n".join(log[-40:])
    return result


def _forked(
    directory: Path, task: Callable[[], None], kill_at: int | None, kill_after: float | None
) -> tuple[int, list[str]]:
    """The status of a child that does the task, and the changes that it made; what it printed if it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.close(reading)
        os._exit(_child(directory, task, writing, kill_at))
    os.close(writing)
    ends = time.monotonic() + (DEADLINE_S if kill_after is None else kill_after)
    text = _read_until(reading, ends)
    if time.monotonic() >= ends:
        os.kill(child, signal.SIGKILL)
        text += _read_until(reading, time.monotonic() + DEADLINE_S)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return status, text.decode(errors="replace").splitlines()


def _child(directory: Path, task: Callable[[], None], log: int, kill_at: int | None) -> int:
    try:
        Changes(directory, log, kill_at)
        task()
    except BaseException:  # noqa: BLE001 (told to the parent)
        os.write(log, traceback.format_exc().encode())
        return 1
    return 0


def _read_until(descriptor: int, ends: float) -> bytes:
    found = b""
    while (left := ends - time.monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        if ready:
            piece = os.read(descriptor, 65536)
            if not piece:
                break
            found += piece
    return found


def _train(directory: Path, overrides: tuple[str, ...]) -> None:
    from tests.support.quick_run import run_quick

    run_quick(directory, *OPTIONS, *overrides)


def _go_on(directory: Path, overrides: tuple[str, ...], reference: Reference) -> None:
    from grpo.telemetry.reader import read_run
    from tests.support.run_contents import assert_same_run

    check_nothing_is_lost(directory)
    completed = (directory / "manifest.json").is_file() and read_run(directory).manifest.state == "completed"
    if not completed:
        _train(directory, overrides)
    assert read_run(directory).manifest.state == "completed"
    assert_same_run(directory, reference.directory, STEPS)
    left = sorted(entry.name for entry in (directory / "checkpoints").iterdir())
    assert left == sorted(entry.name for entry in (reference.directory / "checkpoints").iterdir()), left


def check_nothing_is_lost(directory: Path) -> None:
    """The newest checkpoint is whole, and not older than what the run said that it had saved."""
    from grpo.checkpoint.reading import list_checkpoints, open_checkpoint
    from grpo.telemetry.journal import read_journal

    said = [event["step"] for event in read_journal(directory / "events.jsonl") if event["kind"] == "checkpoint"]
    infos = list_checkpoints(directory / "checkpoints")
    assert all(info.problem is None for info in infos), infos
    if said:
        with open_checkpoint(infos[-1].path, None) as opened:
            assert opened.step >= said[-1], (opened.step, said)


if __name__ == "__main__":
    main()
