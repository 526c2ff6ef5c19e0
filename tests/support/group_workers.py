"""Workers for groups: they work together, fail, hang or stay away on request. They know nothing of Ray.

Torch is imported by those that work together alone: it is most of the time that a process takes to start.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import grpo
from grpo.errors import GenerationError
from grpo.workers.groups.rendezvous import join_process_group

if TYPE_CHECKING:
    import torch


def references() -> int:
    """Objects of Ray that this process holds."""
    import ray

    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


class Ranked:
    """Takes part in a process group if it is given a backend."""

    made = 0  # of them in this process

    def __init__(self, backend: str | None = None, timeout_s: float = 60.0, fail_at: int | None = None):
        Ranked.made += 1
        self.rank = int(os.environ.get("RANK", "0"))
        self._released = threading.Event()
        if self.rank == fail_at:
            raise GenerationError(f"rank {self.rank} does not like to start")
        if backend == "sleeps":
            self._wait_elsewhere()
        if backend is not None:
            join_process_group(backend, timeout_s=timeout_s)

    def add(self, a: int, b: int) -> tuple[int, int]:
        return self.rank, a + b

    def echo(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def references(self) -> int:
        gc.collect()
        return references()

    def where(self) -> dict[str, str]:
        return {
            **os.environ, "pid": str(os.getpid()), "grpo": grpo.__file__, "python": sys.executable,
            "made": str(self.made),
        }  # fmt: skip

    def all_reduce(self, value: float) -> float:
        import torch
        from torch import distributed as dist

        tensor = torch.full((3,), value * 10**self.rank)
        dist.all_reduce(tensor)
        return tensor[0].item()

    def slow(self, seconds: float) -> str:
        threading.Event().wait(seconds)
        return "done"

    def wait_for_release(self) -> str:
        """Until `release` is called, beside this call."""
        if not self._released.wait(60):
            raise TimeoutError("nobody has released it")
        return "released"

    def release(self) -> int:
        self._released.set()
        return self.rank

    def all_reduce_or_leave(self, value: float | None) -> float:
        """Those that are given nothing leave while the others are in a collective."""
        return -1.0 if value is None else self.all_reduce(value)

    def skip_at(self, rank: int) -> float:
        """One rank leaves while the others are in a collective."""
        return -1.0 if self.rank == rank else self.all_reduce(1.0)

    def hang_at(self, rank: int) -> float:
        """One rank waits for something else while the others are in a collective."""
        if self.rank == rank:
            self._wait_elsewhere()
        return self.all_reduce(1.0)

    def _wait_elsewhere(self) -> None:
        threading.Event().wait()

    def stumble_at(self, rank: int) -> float:
        """One rank raises while the others are in a collective."""
        if self.rank == rank:
            self._deeper_down()
        return self.all_reduce(1.0)

    def _deeper_down(self) -> None:
        raise ZeroDivisionError("divided by nothing")

    def refuse_at(self, rank: int) -> None:
        if self.rank == rank:
            raise GenerationError("I would rather not")

    def raise_unpicklable(self) -> None:
        class Local(Exception):  # noqa: N818
            pass

        raise Local("cannot be sent")

    def die_at(self, rank: int) -> float:
        """One rank is killed while the others are in a collective."""
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.all_reduce(1.0)

    def abort(self) -> None:
        os.abort()

    def hold_the_interpreter(self) -> None:
        ctypes.PyDLL(None).sleep(600)

    def start_child(self) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
