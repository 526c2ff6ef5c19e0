"""Generation engines in processes of their own, one on each device or several that share a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from grpo.config.schema import Config
from grpo.errors import GenerationError
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.workers.generation.engine_rank import EngineRank
from grpo.workers.generation.engine_start import Engines, start_engines
from grpo.workers.generation.shares import numbered_anew, share_out
from grpo.workers.groups.reservation import Room
from grpo.workers.groups.worker_group import WorkerGroup
from grpo.workers.offload.engine import EngineResidence
from grpo.workers.protocol import Completion, SamplingParams, WeightsFrom


class EngineGroup:
    """A `Generator` over replicas of an engine. What is sampled does not depend on how many there are.

    A rank that raises, dies or misses its deadline ends all of them: `RankError` says which, and why.
    """

    def __init__(self, engines: Engines) -> None:
        """`engines`: of `EngineRank`."""
        self._engines = engines
        self._residence = EngineResidence()
        self.weight_version = 0
        self._sampling = False  # also after a call that an exception of this process has left

    @classmethod
    def start(
        cls, config: Config, model_path: Path, room: Room | None = None, *, weights_from: WeightsFrom = "folder"
    ) -> Self:
        """Raises as `start_engines`."""
        return cls(start_engines(EngineRank, config, model_path, room, weights_from=weights_from))

    @property
    def workers(self) -> WorkerGroup:
        """The ranks of all replicas, one replica after another."""
        return self._engines.workers

    def generate(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        """Sample; see `Generator.generate`."""
        self._residence.need_all("generate")
        if len(seeds) != len(prompts):
            raise GenerationError(f"{len(prompts)} prompts but {len(seeds)} seeds: give one seed a prompt")
        shares = share_out(
            [len(prompt) for prompt in prompts], num_completions, sampling.max_new_tokens, self._engines.replicas
        )
        self._sampling = True
        try:
            answers = self._engines.call_each(
                "generate",
                [
                    (
                        [prompts[each] for each in needed],
                        num_completions,
                        sampling,
                        [seeds[each] for each in needed],
                        own,
                    )
                    for needed, own in map(numbered_anew, shares)
                ],
            )
        except GenerationError:
            self._sampling = False
            raise
        self._sampling = False
        groups: list[list[Completion]] = [[] for _ in prompts]
        sampled = [
            each for share, answer in zip(shares, answers, strict=True) for each in zip(share, answer, strict=True)
        ]
        for part, completions in sorted(sampled, key=lambda each: each[0].completions.start):
            groups[part.prompt] += completions
        return groups

    def updated(self, version: int) -> None:
        """All ranks have taken the weights of this version."""
        self._residence.updated()
        self.weight_version = version

    def residences(self) -> dict[Resource, Residence]:
        """Where weights and KV cache are, on every rank."""
        return self._residence.residences()

    def sleep(self, level: Literal[1, 2]) -> None:
        """As the engine. Those whose sampling was given up are ended instead: they would sleep only after that."""
        self._residence.fell_asleep(level)
        if self._sampling:
            self._engines.shutdown(at_once=True)
        else:
            self._engines.call("sleep", level)

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """As the engine."""
        self._residence.woke(tags)
        self._engines.call("wake", tuple(tags))

    def shutdown(self) -> None:
        """End engines and processes; more than once does no harm. Those that still sample are not waited for."""
        self._engines.shutdown(at_once=self._sampling)
