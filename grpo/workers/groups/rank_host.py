"""What runs in the process of a rank: it holds the worker and answers for it."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from time import perf_counter
from typing import Any

from grpo.refit.errors import PeerLostError
from grpo.tcp_store import release_port, reserve_port
from grpo.workers.groups.rendezvous import Membership
from grpo.workers.groups.watchdog import watched

_NOT_OF_THE_WORKER = ("/ray/", "/threading.py")
# What an error in a collective says of itself when it is raised outside `torch.distributed`, for example in a backward.
_COLLECTIVE_WORDS = ("gloo/", "NCCL", "c10d", "ProcessGroup")


@dataclass(frozen=True)
class Where:
    """A rank's process."""

    pid: int
    host: str
    node_id: str
    address: str
    gpus: tuple[str, ...]
    stacks_fd: (
        int  # of the file to which it writes its stacks on SIGUSR2, which it can even while it holds the interpreter
    )


@dataclass(frozen=True)
class Failure:
    """An exception of the worker."""

    summary: str  # its type and message
    traceback: str
    in_collective: bool  # probably because another rank failed or stayed away
    error: Exception | None  # itself, if it can be sent


@dataclass(frozen=True)
class Answer:
    """What a call came to."""

    value: Any
    failure: Failure | None
    seconds: float


@dataclass(frozen=True)
class Diagnosis:
    """What a rank is at."""

    stacks: str
    collectives: dict[tuple[str, tuple[int, ...]], int]  # issued so far, by group: its name and ranks


class RankHost:
    """The actor. `diagnose` runs on a thread of its own, as does what is called beside; the rest one after another."""

    def where(self) -> Where:
        import ray

        context = ray.get_runtime_context()
        address: str = ray.util.get_node_ip_address()
        self._stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        faulthandler.register(signal.SIGUSR2, file=self._stacks, all_threads=True)
        faulthandler.enable()
        return Where(
            os.getpid(), socket.gethostname(), context.get_node_id(), address,
            tuple(map(str, context.get_accelerator_ids().get("GPU", ()))), self._stacks.fileno(),
        )  # fmt: skip

    def reserve_port(self, address: str) -> int:
        return reserve_port(address)

    def start(
        self, membership: Membership, make: Callable[..., object], arguments: tuple[object, ...], limit_s: float
    ) -> Answer:
        """Make the worker; see `watched` for what happens after `limit_s`."""
        os.environ.update(membership.environment())
        self._first = membership.first

        def run() -> None:
            self._worker = make(*arguments)
            release_port(membership.master_port)  # of a worker that works alone

        return _answer(run, limit_s)

    def call(self, method: str, arguments: tuple[object, ...], limit_s: float | None = None) -> Answer:
        """Call the worker; see `watched` for what happens after `limit_s`."""
        return _answer(lambda: getattr(self._worker, method)(*arguments), limit_s)

    def diagnose(self) -> Diagnosis:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return Diagnosis(worker_stacks(file.read()), _collectives(self._first))


def worker_stacks(dump: str) -> str:
    """What `faulthandler` wrote, without threads that run no code of the worker and without the frames of its host."""
    kept = []
    for thread in dump.strip().split("\n\n"):
        header, *frames = thread.split("\n")
        own = list(takewhile(lambda frame: __file__ not in frame, frames))
        if any("File" in frame and not any(each in frame for each in _NOT_OF_THE_WORKER) for frame in own):
            kept.append("\n".join([header, *own]))
    return "\n".join(kept)


def _answer(work: Callable[[], object], limit_s: float | None) -> Answer:
    started = perf_counter()
    try:
        with nullcontext() if limit_s is None else watched(limit_s):
            value = work()
    except Exception as error:  # noqa: BLE001 - goes to the caller with its traceback
        return Answer(None, _failure(error), perf_counter() - started)
    return Answer(value, None, perf_counter() - started)


def _failure(error: Exception) -> Failure:
    told = traceback.TracebackException.from_exception(error)
    frames = list(dropwhile(lambda frame: frame.filename == __file__, traceback.extract_tb(error.__traceback__)))
    told.stack = traceback.StackSummary.from_list(frames)
    summary = "".join(traceback.format_exception_only(error)).strip()
    return Failure(summary, "".join(told.format()), follows(error), _sendable(error))


def follows(error: BaseException) -> bool:
    """Whether it is probably there because another rank failed or stayed away."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and "torch/distributed/" in frames[-1].filename
    told = isinstance(error, RuntimeError) and any(word in str(error) for word in _COLLECTIVE_WORDS)
    return inside or told or isinstance(error, PeerLostError)


def _sendable(error: Exception) -> Exception | None:
    try:
        restored = pickle.loads(pickle.dumps(error))  # noqa: S301 - what was made on the same line
    except Exception:  # noqa: BLE001 - anything may go wrong in the methods of a foreign exception
        return None
    return error if type(restored) is type(error) else None


def _collectives(first: int) -> dict[tuple[str, tuple[int, ...]], int]:
    """By process group, how many collectives this rank has issued; ranks counted from `first`."""
    dist = sys.modules.get("torch.distributed")  # importing it would take longer than a diagnosis may
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return {}
    world: Any = dist.distributed_c10d._world  # noqa: SLF001 - no public way to ask
    return {
        (
            world.pg_names[group],
            tuple(first + rank for rank in dist.get_process_group_ranks(group)),
        ): group._get_sequence_number_for_group()  # noqa: SLF001
        for group in list(world.pg_map)
    }
