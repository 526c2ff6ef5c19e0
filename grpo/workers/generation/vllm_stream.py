"""The vLLM engine, one step of its scheduler at a time, with the versions of the weights of every token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from grpo.workers.generation import vllm_compat, vllm_steps
from grpo.workers.generation.vllm import VllmGenerator, request_samplings
from grpo.workers.protocol import Completion, GroupRequest, SamplingParams


@dataclass
class _Running:
    """A request of the engine: one completion of a group."""

    key: int
    number: int
    row: int | None
    version: int
    prompt: list[int]
    parameters: Any
    newer_from: list[tuple[int, int]] = field(default_factory=list)


class VllmStream:
    """A `SteppedEngine` over vLLM in this process.

    Weights are replaced between two steps, while requests run. Their cache stays, computed with the old weights, or is
    computed again with the new ones (`recompute_cache`). A new request finds only prefixes of its own version.
    """

    def __init__(self, generator: VllmGenerator, *, recompute_cache: bool) -> None:
        self._generator = generator
        self._recompute_cache = recompute_cache
        self._running: dict[str, _Running] = {}
        self._groups: dict[int, list[Completion | None]] = {}

    @property
    def weight_version(self) -> int:
        return self._generator.weight_version

    @property
    def pending(self) -> int:
        return len(self._running)

    def add(self, request: GroupRequest, num_completions: int, sampling: SamplingParams) -> None:
        """Queue all completions of a group.

        Raises:
            GenerationError: a request that the engine cannot take.
        """
        self._generator.check([request.prompt], num_completions, sampling, [request.seed])
        version = self.weight_version
        self._groups[request.key] = [None] * num_completions
        rows = self._generator.reserve(num_completions, sampling)
        drawn = request_samplings(sampling, len(request.prompt), request.seed, num_completions)
        for number, (each, row) in enumerate(zip(drawn, rows, strict=True)):
            parameters = self._generator.request_parameters(*each, row)
            self._start(_Running(request.key, number, row, version, list(request.prompt), parameters))

    def step(self) -> list[tuple[int, list[Completion]]]:
        """One pass of the scheduler.

        Raises:
            GenerationError: weights are of two versions after a failed update, or a request ended otherwise than asked.
        """
        self._generator.check_weights()
        complete = []
        with vllm_compat.sampling_context(self._generator.device):
            outputs = self._generator.engine.llm_engine.step()
        for output in outputs:
            if not output.finished:
                continue
            running = self._running.pop(output.request_id)
            group = self._groups[running.key]
            group[running.number] = self._generator.completion(
                output.outputs[0], running.row, running.version, tuple(running.newer_from)
            )
            self._generator.release([running.row])
            if None not in group:
                del self._groups[running.key]
                complete.append((running.key, [each for each in group if each is not None]))
        return complete

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights; the tokens that come after are of the new version."""
        lengths = vllm_steps.tokens_so_far(self._generator.engine)
        kept = self._cache_of_running() == "keep"
        self._generator.replace_weights(iter(weights), version, running=self._cache_of_running())
        untouched = [name for name in self._running if not lengths.get(name)]
        for name in untouched:
            self._running[name].version = version
        if kept and untouched:  # they would find prefixes of the old weights, under the salt that they were added with
            self._generator.engine.llm_engine.abort_request(untouched)
            for running in [self._running.pop(name) for name in untouched]:
                self._start(running)
        for name, running in self._running.items():
            length = lengths.get(name, 0)
            if length:
                running.newer_from = [each for each in running.newer_from if each[0] < length] + [(length, version)]

    def shutdown(self) -> None:
        self._generator.shutdown()

    def _start(self, running: _Running) -> None:
        name = f"{running.key}/{running.number}"
        self._running[name] = running
        prompt = {"prompt_token_ids": running.prompt, "cache_salt": f"weights {running.version}"}
        self._generator.engine.llm_engine.add_request(name, prompt, running.parameters)

    def _cache_of_running(self) -> vllm_compat.CacheOfRunning:
        if not self._running:
            return "none"
        return "recompute" if self._recompute_cache else "keep"
