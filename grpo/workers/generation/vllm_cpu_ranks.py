"""What vLLM's external launcher lacks on CPUs. vLLM imports this module by its name."""

from __future__ import annotations

import os
from pathlib import Path

from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it


class CpuRankExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]
    """Engines on one machine each have shared memory of their own, and leave none behind.

    vLLM names it after the end of this address, which with the launcher's own `env://` is the same for all engines.
    """

    def _init_executor(self) -> None:
        super()._init_executor()
        # All ranks are attached by now: without its name the memory goes with the last of them, however that ends.
        for file in _SHARED_MEMORY.glob(f"{os.environ['MASTER_PORT']}-*-cpushm_*"):
            file.unlink(missing_ok=True)

    def _distributed_args(self) -> tuple[str, int, int]:
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        return f"tcp://{address}:{port}", int(os.environ["RANK"]), 0
