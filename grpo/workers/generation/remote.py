"""A generation engine in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from grpo.config.schema import Config
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.workers.generation.local import make_local_generator
from grpo.workers.groups.packed import PackedTensor
from grpo.workers.groups.ray_session import STOP_SECONDS
from grpo.workers.groups.ray_worker import RayWorker
from grpo.workers.groups.reservation import Reservation
from grpo.workers.offload.engine import EngineResidence
from grpo.workers.protocol import Completion, SamplingParams


class EngineProcess:
    """What runs in the process: the engine, with weights unpacked as it takes them."""

    def __init__(self, config: Config, model_path: Path) -> None:
        if config.cluster.cpu_threads is not None:
            torch.set_num_threads(config.cluster.cpu_threads)
        self._engine = make_local_generator(config, model_path)

    def generate(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        return self._engine.generate(prompts, num_completions, sampling, seeds)

    def update_weights(self, weights: Sequence[PackedTensor], version: int) -> None:
        self._engine.update_weights((weight.unpack() for weight in weights), version)

    def sleep(self, level: Literal[1, 2]) -> None:
        self._engine.sleep(level)

    def wake(self, tags: Sequence[EngineTag]) -> None:
        self._engine.wake(tags)

    def shutdown(self) -> None:
        self._engine.shutdown()


class RemoteGenerator:
    """A `Generator` whose engine runs in a Ray actor. Errors are the engine's own; see `RayWorker` for deadlines."""

    def __init__(self, config: Config, model_path: Path, reservation: Reservation | None = None) -> None:
        """Start the process and, in it, the engine of `policy.generation.backend`; beside rank 0 of a reservation.

        Raises:
            WorkerError: Ray is missing, or the engine does not start within `cluster.worker_timeout_s`.
            GenerationError: as the engine raises it.
        """
        self._worker = RayWorker(
            EngineProcess,
            config,
            model_path,
            timeout_s=config.cluster.worker_timeout_s,
            num_gpus=min(1, config.cluster.gpus_per_node),
            reservation=reservation,
            environment={"OMP_NUM_THREADS": str(config.cluster.cpu_threads or 1)},
        )
        self._residence = EngineResidence()
        self.weight_version = 0
        self._sampling = False  # also after a call that an exception of this process has left

    def generate(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        """Sample; see `Generator.generate`."""
        self._sampling = True
        completions: list[list[Completion]] = self._worker.call("generate", prompts, num_completions, sampling, seeds)
        self._sampling = False
        return completions

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Send all weights through the object store, then let the engine take them; on an error the old ones stay."""
        packed = [PackedTensor.pack(name, tensor) for name, tensor in weights]
        self._worker.call("update_weights", packed, version)
        self._residence.updated()
        self.weight_version = version

    def residences(self) -> dict[Resource, Residence]:
        """Where weights and KV cache are."""
        return self._residence.residences()

    def sleep(self, level: Literal[1, 2]) -> None:
        """As the engine. One whose sampling was given up is ended instead: it would sleep only after that."""
        self._residence.fell_asleep(level)
        if self._sampling:
            self._worker.kill()
        else:
            self._worker.call("sleep", level)

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """As the engine."""
        self._residence.woke(tags)
        self._worker.call("wake", tuple(tags))

    def shutdown(self) -> None:
        """End the engine and its process; more than once does no harm. One that still samples is not waited for."""
        if self._worker.alive:
            try:
                if not self._sampling:
                    self._worker.call("shutdown", timeout_s=STOP_SECONDS)
            finally:
                self._worker.kill()
