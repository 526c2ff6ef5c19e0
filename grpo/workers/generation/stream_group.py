"""Generation engines that sample on in processes of their own while their caller does other things."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from grpo.config.schema import Config
from grpo.errors import WorkerError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import ENGINE, EngineTag, Residence, Resource
from grpo.workers.generation.engine_rank import StreamRank
from grpo.workers.generation.engine_start import Engines, start_engines
from grpo.workers.generation.shares import Loads, work
from grpo.workers.groups.reservation import Room
from grpo.workers.groups.worker_group import WorkerGroup
from grpo.workers.protocol import Completion, Finished, GroupRequest, SamplingParams, WeightsFrom

_STREAM, _BATCH = "stream", "batch"
_WAIT_SECONDS = 1.0  # of `generate`, for what it has asked for
# How long one question for finished requests lasts, for each replica: what one has finished waits for the others.
_QUESTION_SECONDS = 0.025


class StreamGroup:
    """A `StreamingGenerator` over replicas of an engine; may be used from two threads."""

    def __init__(self, engines: Engines, *, timeout_s: float) -> None:
        """`engines`: of `StreamRank`; `timeout_s`: without any request finishing, in `generate`."""
        self._engines = engines
        self._timeout_s = timeout_s
        self._submitting = threading.Lock()  # all ranks of a replica are sent the same requests in the same order
        self._loads = Loads(engines.replicas)
        self._running: dict[int, tuple[str, int, int]] = {}  # by key: owner, replica, work
        self._batch_keys = itertools.count(-1, -1)
        self.weight_version = 0

    @classmethod
    def start(
        cls, config: Config, model_path: Path, room: Room | None = None, *, weights_from: WeightsFrom = "folder"
    ) -> Self:
        """Raises as `start_engines`."""
        timeout_s = config.cluster.worker_timeout_s
        engines = start_engines(StreamRank, config, model_path, room, weights_from=weights_from)
        return cls(engines, timeout_s=timeout_s)

    @property
    def workers(self) -> WorkerGroup:
        """The ranks of all replicas, one replica after another."""
        return self._engines.workers

    def submit(self, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams) -> None:
        """See `StreamingGenerator.submit`; keys are 0 or more."""
        self._submit(_STREAM, requests, num_completions, sampling)

    def finished(self, wait_s: float) -> Finished:
        """See `StreamingGenerator.finished`."""
        return self._finished(_STREAM, wait_s)

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
        self._submit(_BATCH, requests, num_completions, sampling)
        wanted = {request.key for request in requests}  # others' may come that were given up
        done: dict[int, list[Completion]] = {}
        heard = time.monotonic()
        while len(done) < len(requests):
            groups = self._finished(_BATCH, _WAIT_SECONDS).groups
            done.update((key, group) for key, group in groups if key in wanted)
            now = time.monotonic()
            if groups:
                heard = now
            elif now - heard > self._timeout_s:
                raise WorkerError(
                    f"the engines finished none of {len(requests) - len(done)} requests within {self._timeout_s:g} s; "
                    "raise cluster.worker_timeout_s if they were only slow"
                )
        return [done[request.key] for request in requests]

    def updated(self, version: int) -> None:
        """All ranks have taken the weights of this version."""
        self.weight_version = version

    def residences(self) -> dict[Resource, Residence]:
        """They have devices of their own, where everything stays."""
        return dict.fromkeys(ENGINE, Residence.GPU)

    def sleep(self, level: Literal[1, 2]) -> None:
        """Raises PlacementError: they sample while others work."""
        raise PlacementError(f"an engine that samples on cannot sleep (level {level}): it has devices of its own")

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """Always awake."""

    def shutdown(self) -> None:
        """End the engines and their processes, at once where they sample; more than once does no harm."""
        self._engines.shutdown(at_once=bool(self._running))

    def _submit(
        self, owner: str, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams
    ) -> None:
        """Each request to the replica that has least to do."""
        with self._submitting:
            shares: list[list[GroupRequest]] = [[] for _ in range(self._engines.replicas)]
            for request in requests:
                amount = work(len(request.prompt), num_completions, sampling.max_new_tokens)
                replica = self._loads.give(amount)
                self._running[request.key] = (owner, replica, amount)
                shares[replica].append(request)
            self._engines.call_each("submit", [(owner, share, num_completions, sampling) for share in shares])

    def _finished(self, owner: str, wait_s: float) -> Finished:
        """All replicas are asked again and again until one has something; none that has nothing to do is waited for.

        The seconds in which they sampled are the mean of the replicas.
        """
        replicas, ends = self._engines.replicas, time.monotonic() + wait_s
        longest = wait_s if replicas == 1 else replicas * _QUESTION_SECONDS
        busy_s = 0.0
        while True:
            left = max(0.0, ends - time.monotonic())
            with self._submitting:
                waited_for = {replica for who, replica, _ in self._running.values() if who == owner} or {0}
            answers = self._engines.call_each(
                "finished",
                [(owner, min(left, longest) if replica in waited_for else 0.0) for replica in range(replicas)],
            )
            busy_s += sum(answer.busy_s for answer in answers) / replicas
            groups = [group for answer in answers for group in answer.groups]
            if groups or left == 0.0:
                self._forget([key for key, _ in groups])
                return Finished(groups, busy_s)

    def _forget(self, keys: Sequence[int]) -> None:
        with self._submitting:
            for key in keys:
                _, replica, amount = self._running.pop(key)
                self._loads.done(replica, amount)
