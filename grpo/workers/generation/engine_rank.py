"""What runs in the process of an engine's rank. All ranks of an engine are asked the same; its first one answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch

from grpo.config import layout
from grpo.config.schema import Config
from grpo.errors import GenerationError
from grpo.placement.resources import EngineTag
from grpo.refit.endpoints import RefitTarget
from grpo.workers.generation.engine_loop import BatchEngine, EngineLoop, SteppedEngine
from grpo.workers.generation.expected_weights import ExpectedWeights
from grpo.workers.generation.local import make_local_generator
from grpo.workers.generation.lockstep import Alone, Lockstep
from grpo.workers.generation.shares import Part
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.generation.vllm_stream import VllmStream
from grpo.workers.groups.rendezvous import join_process_group
from grpo.workers.protocol import Completion, Finished, GroupRequest, SamplingParams, WeightsFrom

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Refusal:
    """What an engine would not do, and went on as before. Returned, since what a rank raises ends all ranks."""

    error: GenerationError


class EngineRank(RefitTarget):
    """Holds an engine, or a part of one among the ranks that the environment names."""

    def __init__(self, config: Config, model_path: Path, weights_from: WeightsFrom = "folder") -> None:
        enter_process(config)
        self._answers = is_first()
        self._engine = make_local_generator(config, model_path, weights_from=weights_from)
        super().__init__(
            self._engine.update_weights, ExpectedWeights.of_folder(model_path), config.policy.precision, _name()
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_completions: int,
        sampling: SamplingParams,
        seeds: Sequence[int],
        parts: Sequence[Part],
    ) -> list[list[Completion]] | Refusal | None:
        """The completions of each part, of the prompts in their order; those of other ranks are dropped."""

        def sampled() -> list[list[Completion]]:
            found: dict[Part, list[Completion]] = {}
            for wanted in dict.fromkeys(part.completions for part in parts):
                alike = [part for part in parts if part.completions == wanted]
                asked, drawn = [prompts[part.prompt] for part in alike], [seeds[part.prompt] for part in alike]
                groups = self._engine.generate(asked, num_completions, sampling, drawn, completions=wanted)
                found.update(zip(alike, groups, strict=True))
            return [found[part] for part in parts]

        completions = refusable(sampled)
        return completions if self._answers or isinstance(completions, Refusal) else None

    def sleep(self, level: Literal[1, 2]) -> None:
        self._engine.sleep(level)

    def wake(self, tags: Sequence[EngineTag]) -> None:
        self._engine.wake(tags)

    def shutdown(self) -> None:
        self._engine.shutdown()


class StreamRank(RefitTarget):
    """The same for an engine that samples on. No call waits for that, but an update that is not in flight."""

    def __init__(self, config: Config, model_path: Path, weights_from: WeightsFrom = "folder") -> None:
        enter_process(config)
        self._answers = is_first()
        several = layout(config).engine_parallel_size > 1
        together = Lockstep(deadline_s=config.cluster.worker_timeout_s) if several else Alone()
        self._loop = EngineLoop(
            lambda: stepped_engine(config, model_path, weights_from=weights_from),
            in_flight=config.grpo.async_grpo.in_flight_weight_updates, together=together,
            deadline_s=config.cluster.worker_timeout_s,
        )  # fmt: skip
        super().__init__(
            self._loop.update_weights, ExpectedWeights.of_folder(model_path), config.policy.precision, _name()
        )

    def submit(
        self, owner: str, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams
    ) -> None:
        self._loop.submit(owner, requests, num_completions, sampling)

    def finished(self, owner: str, wait_s: float) -> Finished:
        if self._answers:
            return self._loop.finished(owner, wait_s)
        self._loop.finished(owner, 0.0)
        return Finished([], 0.0)

    def shutdown(self) -> None:
        self._loop.shutdown()


def enter_process(config: Config) -> None:
    """Set up this process; ranks that are one engine find each other."""
    if config.cluster.cpu_threads is not None:
        torch.set_num_threads(config.cluster.cpu_threads)
    if layout(config).engine_parallel_size > 1:
        backend: Literal["nccl", "gloo"] = "nccl" if config.cluster.gpus_per_node else "gloo"
        join_process_group(backend, timeout_s=config.cluster.worker_timeout_s)


def is_first() -> bool:
    """Whether this is the first rank of its engine."""
    return int(os.environ.get("RANK", "0")) == 0


def stepped_engine(config: Config, model_path: Path, *, weights_from: WeightsFrom = "folder") -> SteppedEngine:
    """The engine of `policy.generation.backend`, in this process, to be told when to work."""
    engine = make_local_generator(config, model_path, weights_from=weights_from)
    if isinstance(engine, VllmGenerator):
        return VllmStream(engine, recompute_cache=config.grpo.async_grpo.recompute_kv_cache_after_weight_updates)
    return BatchEngine(engine)


def refusable(work: Callable[[], _Result]) -> _Result | Refusal:
    """What `work` returns, or the engine's refusal."""
    try:
        return work()
    except GenerationError as error:
        return Refusal(error)


def _name() -> str:
    """Of this rank's engine, for messages."""
    return f"the engine (process {os.getpid()})"
