"""Kills whole runs over ranks with SIGKILL, again and again: the driver, all ranks, or one.

`python -m tests.support.ray_kill_harness FOLDER --kills 20 --seed 1`: one run directory, in which a run is started,
killed and started again until it has been killed so often; then it goes on, and must be the run that nobody killed, to
the bit. Every start is a driver of its own with a Ray of its own. A kill comes at a change that the driver makes to the
disk (in a save, a rename, a deletion, a line of metrics), or at a random time, which may find the ranks in their
files. After each kill no process may be left, and the newest checkpoint must be whole and not older than what the
run has told.

A start is some 30 s of CPU time: the driver's imports, Ray's servers, and the imports of three ranks. Where several
share the cores it takes that much longer, and the deadline moves with it. At the deadline `tests.support.stuck_run`
says what the run's processes were at.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from tests.support.kill_harness import OPTIONS, REPOSITORY, Changes, check_nothing_is_lost
from tests.support.stuck_run import answer_with_stacks, crowding, tell_run

Who = Literal["driver", "all", "one"]
WHO: tuple[Who, ...] = ("driver", "all", "one")
RANKS = ("cluster.launcher=ray", "cluster.cpu_ranks=2", "policy.train_micro_batch_size=6")
_FIRST_CHANGES, _FIRST_SECONDS = 150, 1.0  # of about five steps, each of which saves
_DEADLINE_S = 240.0  # for a start, some steps and the end of all processes, where there is a core for each process
_POLL_S = 5.0
_MANY = "grpo.max_num_steps=1000000"


@dataclass(frozen=True)
class Kill:
    """`at`: the number of a change to the disk, or seconds; counted from when the policy is there, but for the driver's
    changes, which count from its start.
    """

    who: Who
    at: int | float
    rank: int = 0


@dataclass(frozen=True)
class Death:
    """What was killed, the last change that the driver had begun by then, and the last step that can be resumed."""

    kill: Kill
    place: str
    step: int


def random_kills(count: int, seed: int) -> list[Kill]:
    """As many of each kind, in any order."""
    chance = random.Random(seed)
    kinds = [WHO[number % len(WHO)] for number in range(count)]
    chance.shuffle(kinds)
    return [
        Kill(
            who, chance.randrange(_FIRST_CHANGES) if chance.random() < 0.6 else chance.uniform(0.0, _FIRST_SECONDS),
            chance.randrange(2),
        )
        for who in kinds
    ]  # fmt: skip


def killed_run(directory: Path, kills: Sequence[Kill], overrides: Sequence[str] = ()) -> Iterator[Death]:
    """Start the run and kill it, once for each kill. Raises AssertionError where anything is not as it must be."""
    for kill in kills:
        place = _killed(directory, kill, overrides)
        check_nothing_is_lost(directory)
        yield Death(kill, place, _last_step(directory))


def run_to(directory: Path, steps: int, overrides: Sequence[str] = ()) -> None:
    """Start the run, or have it go on, up to a step."""
    started = _started(directory, None, [*overrides, f"grpo.max_num_steps={steps}"])
    out, error = _ended(started, directory, f"to step {steps}")
    assert started.returncode == 0, out + error


def _killed(directory: Path, kill: Kill, overrides: Sequence[str]) -> str:
    """The last change that the driver had begun."""
    process = _started(directory, kill, [*overrides, _MANY])
    out, error = _ended(process, directory, str(kill))
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(told) == 1, f"{kill}: nothing was killed\n{out}{error}"
    if kill.who == "driver":
        assert process.returncode == -signal.SIGKILL, (kill, process.returncode, error)
    else:
        assert process.returncode == 1, (kill, process.returncode, error)
        assert "RankError" in error, (kill, error)
    _check_gone(told[0]["processes"], kill)
    place: str = told[0]["place"]
    return place


def _ended(
    process: subprocess.Popen[str], directory: Path, what: str, deadline_s: float = _DEADLINE_S
) -> tuple[str, str]:
    """What it printed; past the deadline, AssertionError with what its processes are at."""
    began, left = time.monotonic(), deadline_s
    while True:
        try:
            return process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            left -= _POLL_S / crowding()
        if left <= 0:
            seconds = time.monotonic() - began
            state = tell_run(process.pid, directory)
            process.kill()
            out, error = process.communicate()
            raise AssertionError(f"{what}: the run did not end in {seconds:.0f} s\n{state}\n{out}{error}")


def _started(directory: Path, kill: Kill | None, overrides: Sequence[str]) -> subprocess.Popen[str]:
    plan = json.dumps(None if kill is None else asdict(kill))
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.ray_kill_harness", str(directory), "--plan", plan]
    return subprocess.Popen(
        [*command, *OPTIONS, *RANKS, *overrides], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _check_gone(pids: Sequence[int], kill: Kill) -> None:
    ends = time.monotonic() + 60
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < ends, f"{kill}: {left} are left"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _last_step(directory: Path) -> int:
    from grpo.checkpoint.reading import list_checkpoints

    infos = list_checkpoints(directory / "checkpoints")
    return infos[-1].step if infos else 0


class _Strike:
    """Kills, once, what the plan says, when its instant is there."""

    def __init__(self, directory: Path, kill: Kill) -> None:
        self._kill, self._done = kill, threading.Lock()
        self._policy: Any = None
        reader, self._log = os.pipe()
        self._places: list[str] = []
        threading.Thread(target=self._read, args=(reader,), daemon=True).start()
        self._changes: Changes | None = None
        self._directory = directory
        if kill.who == "driver" and isinstance(kill.at, int):
            Changes(directory, self._log, kill.at, self.now)

    def policy_is_there(self, policy: Any) -> None:
        self._policy = policy
        if isinstance(self._kill.at, float):
            timer = threading.Timer(self._kill.at, self.now)
            timer.daemon = True
            timer.start()
        elif self._kill.who != "driver":
            Changes(self._directory, self._log, self._kill.at, self.now)

    def now(self) -> None:
        if not self._done.acquire(blocking=False):
            return
        processes = [each.pid for each in psutil.Process().children(recursive=True)]
        print(json.dumps({"processes": processes, "place": (self._places or ["a random time"])[-1]}), flush=True)  # noqa: T201
        if self._kill.who == "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        places = self._policy._group.places
        for place in places if self._kill.who == "all" else [places[self._kill.rank % len(places)]]:
            os.kill(place.pid, signal.SIGKILL)

    def _read(self, reader: int) -> None:
        with os.fdopen(reader) as lines:
            for line in lines:
                self._places.append(line.strip())


def _run(directory: Path, plan: Any, overrides: Sequence[str]) -> None:
    """The driver."""
    import torch

    from grpo.workers.policy.group import PolicyGroup
    from tests.support.quick_run import run_quick

    torch.set_num_threads(1)
    answer_with_stacks()
    if plan is not None:
        strike, real = _Strike(directory, Kill(**plan)), PolicyGroup.__init__

        def make(self: PolicyGroup, *arguments: Any, **keywords: Any) -> None:
            real(self, *arguments, **keywords)
            strike.policy_is_there(self)

        PolicyGroup.__init__ = make  # type: ignore[method-assign]
    run_quick(directory, *overrides)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further kill after so many")
    parser.add_argument("--plan", help="of a single start; for the harness itself")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_intermixed_args()
    if given.plan is not None:
        _run(given.folder, json.loads(given.plan), given.overrides)
        return
    seed = random.randrange(2**32) if given.seed is None else given.seed
    deaths = kill_again_and_again(given.folder, given.kills, seed, given.overrides, seconds=given.seconds)
    print(f"seed {seed}: {len(deaths)} kills, {Counter(death.kill.who for death in deaths)}: the same run")  # noqa: T201


def kill_again_and_again(
    folder: Path, kills: int, seed: int, overrides: Sequence[str] = (), *, seconds: float = float("inf")
) -> list[Death]:
    """A run that is killed so often, or for so long, and at last goes on, against one that is not killed."""
    from tests.support.run_contents import assert_same_run

    print(f"seed {seed}", flush=True)  # noqa: T201
    directory, ends, deaths = folder / f"killed-{seed}", time.monotonic() + seconds, []
    for death in killed_run(directory, random_kills(kills, seed), overrides):
        deaths.append(death)
        print(death, flush=True)  # noqa: T201
        if time.monotonic() > ends:
            break
    steps = _last_step(directory) + 2
    for each in (directory, folder / f"whole-{seed}"):
        run_to(each, steps, overrides)
    assert_same_run(directory, folder / f"whole-{seed}", steps)
    left, expected = (
        sorted(entry.name for entry in (each / "checkpoints").iterdir())
        for each in (directory, folder / f"whole-{seed}")
    )
    assert left == expected
    return deaths


if __name__ == "__main__":
    main()
