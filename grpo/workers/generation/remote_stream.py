"""A generation engine that samples on in a process of its own while its caller does other things."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from grpo.config.schema import Config
from grpo.errors import WorkerError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import ENGINE, EngineTag, Residence, Resource
from grpo.workers.generation.engine_loop import BatchEngine, EngineLoop, SteppedEngine
from grpo.workers.generation.local import make_local_generator
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.generation.vllm_stream import VllmStream
from grpo.workers.groups.packed import PackedTensor
from grpo.workers.groups.ray_session import STOP_SECONDS
from grpo.workers.groups.ray_worker import RayWorker
from grpo.workers.groups.reservation import Reservation
from grpo.workers.protocol import Completion, Finished, GroupRequest, SamplingParams

_WAIT_SECONDS = 1.0  # of one question for finished requests: the process answers others in between
_STREAM, _BATCH = "stream", "batch"


class StreamProcess:
    """What runs in the process. No call waits for what is being sampled, but an update that is not in flight."""

    def __init__(self, config: Config, model_path: Path) -> None:
        if config.cluster.cpu_threads is not None:
            torch.set_num_threads(config.cluster.cpu_threads)
        self._loop = EngineLoop(
            lambda: stepped_engine(config, model_path), in_flight=config.grpo.async_grpo.in_flight_weight_updates
        )

    def submit(
        self, owner: str, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams
    ) -> None:
        self._loop.submit(owner, requests, num_completions, sampling)

    def finished(self, owner: str, wait_s: float) -> Finished:
        return self._loop.finished(owner, wait_s)

    def update_weights(self, weights: Sequence[PackedTensor], version: int) -> None:
        self._loop.update_weights((weight.unpack() for weight in weights), version)

    def shutdown(self) -> None:
        self._loop.shutdown()


def stepped_engine(config: Config, model_path: Path) -> SteppedEngine:
    """The engine of `policy.generation.backend`, in this process, to be told when to work."""
    engine = make_local_generator(config, model_path)
    if isinstance(engine, VllmGenerator):
        return VllmStream(engine, recompute_cache=config.grpo.async_grpo.recompute_kv_cache_after_weight_updates)
    return BatchEngine(engine)


class RemoteStream:
    """A `StreamingGenerator` whose engine runs in a Ray actor; may be used from two threads."""

    def __init__(self, config: Config, model_path: Path, reservation: Reservation | None = None) -> None:
        """Start the process and the engine in it.

        Raises:
            WorkerError: Ray is missing, or the engine does not start within `cluster.worker_timeout_s`.
            GenerationError: as the engine raises it.
        """
        self._timeout_s = config.cluster.worker_timeout_s
        self._worker = RayWorker(
            StreamProcess,
            config,
            model_path,
            timeout_s=self._timeout_s,
            num_gpus=min(1, config.cluster.gpus_per_node),
            reservation=reservation,
            environment={"OMP_NUM_THREADS": str(config.cluster.cpu_threads or 1)},
        )
        self._batch_keys = itertools.count(-1, -1)
        self.weight_version = 0

    def submit(self, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams) -> None:
        """See `StreamingGenerator.submit`; keys are 0 or more."""
        self._worker.call("submit", _STREAM, requests, num_completions, sampling)

    def finished(self, wait_s: float) -> Finished:
        """See `StreamingGenerator.finished`."""
        finished: Finished = self._worker.call("finished", _STREAM, wait_s)
        return finished

    def generate(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        """Sample beside what was submitted; see `Generator.generate`.

        Raises:
            WorkerError: nothing finished for `cluster.worker_timeout_s`.
        """
        requests = [
            GroupRequest(next(self._batch_keys), tuple(prompt), seed)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        self._worker.call("submit", _BATCH, requests, num_completions, sampling)
        done: dict[int, list[Completion]] = {}
        heard = time.monotonic()
        while len(done) < len(requests):
            groups = self._worker.call("finished", _BATCH, _WAIT_SECONDS).groups
            done.update(groups)
            now = time.monotonic()
            if groups:
                heard = now
            elif now - heard > self._timeout_s:
                raise WorkerError(
                    f"the engine finished none of {len(requests) - len(done)} requests within {self._timeout_s:g} s; "
                    "raise cluster.worker_timeout_s if it was only slow"
                )
        return [done[request.key] for request in requests]

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Send all weights; the engine takes them between two tokens, or when it has finished what it samples."""
        packed = [PackedTensor.pack(name, tensor) for name, tensor in weights]
        self._worker.call("update_weights", packed, version)
        self.weight_version = version

    def residences(self) -> dict[Resource, Residence]:
        """It has devices of its own, where everything stays."""
        return dict.fromkeys(ENGINE, Residence.GPU)

    def sleep(self, level: Literal[1, 2]) -> None:
        """Raises PlacementError: it samples while others work."""
        raise PlacementError(f"an engine that samples on cannot sleep (level {level}): it has devices of its own")

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """Always awake."""

    def shutdown(self) -> None:
        """End the engine and its process; more than once does no harm."""
        if self._worker.alive:
            try:
                self._worker.call("shutdown", timeout_s=STOP_SECONDS)
            finally:
                self._worker.kill()
