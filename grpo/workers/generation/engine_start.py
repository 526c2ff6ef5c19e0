"""Starting the ranks of generation engines, and calling them as one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grpo.config import layout
from grpo.config.schema import Config
from grpo.errors import GenerationError, GrpoError, WorkerError
from grpo.workers.generation.engine_rank import EngineRank, Refusal, StreamRank
from grpo.workers.groups.failures import RankError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.ray_session import STOP_SECONDS
from grpo.workers.groups.reservation import Room, rooms_for
from grpo.workers.groups.worker_group import WorkerGroup
from grpo.workers.protocol import WeightsFrom


class Engines:
    """Replicas of an engine, of `size` ranks each, in a worker group: rank e belongs to replica e // size."""

    def __init__(self, workers: WorkerGroup, size: int, held: ExitStack | None = None) -> None:
        """`held`: what ends with the engines."""
        assert workers.world_size % size == 0, (workers.world_size, size)
        self.workers = workers
        self._size = size
        self._held = ExitStack() if held is None else held
        self._alive = True

    @property
    def replicas(self) -> int:
        return self.workers.world_size // self._size

    def call(self, method: str, *arguments: object, deadline_s: float | None = None) -> None:
        """Call all ranks. Raises GenerationError if they refuse."""
        self._answers(self.workers.call_all(method, *arguments, deadline_s=deadline_s))

    def call_each(self, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call the ranks of each replica with its own arguments; what the replicas answer."""
        assert len(arguments) == self.replicas, (len(arguments), self.replicas)
        of_ranks = [own for own in arguments for _ in range(self._size)]
        return self._answers(self.workers.call_each(method, of_ranks))

    def shutdown(self, *, at_once: bool) -> None:
        """End all ranks, after their engines unless `at_once` or they have failed; more than once does no harm."""
        if not self._alive:
            return
        self._alive = False
        with self._held:
            try:
                if not (at_once or self.workers.ended):
                    self.workers.call_all("shutdown", deadline_s=STOP_SECONDS)
            finally:
                self.workers.shutdown()

    def _answers(self, answers: Sequence[Any]) -> list[Any]:
        """Of the first rank of each replica.

        Raises:
            GenerationError: all ranks of a replica have refused, which leaves them as they were.
            WorkerError: only some of them have: they are not the same engine any more, and all are ended.
        """
        for first in range(0, len(answers), self._size):
            of_replica = answers[first : first + self._size]
            refused = [answer for answer in of_replica if isinstance(answer, Refusal)]
            if refused and len(refused) < self._size:
                self.shutdown(at_once=True)
                raise WorkerError(
                    f"{len(refused)} of {self._size} ranks of engine {first // self._size} refused what the others "
                    f"did: {refused[0].error}"
                )
        for answer in answers:
            if isinstance(answer, Refusal):
                raise GenerationError(str(answer.error)) from answer.error
        return list(answers[:: self._size])


def start_engines(
    make: type[EngineRank | StreamRank],
    config: Config,
    model_path: Path,
    room: Room | None,
    *,
    weights_from: WeightsFrom = "folder",
) -> Engines:
    """One process for each engine rank of `config`, in `room` or in a Ray of their own on this machine.

    Raises:
        WorkerError: Ray is missing, or a rank died or did not start within `cluster.worker_timeout_s`.
        GrpoError: as an engine raised it.
    """
    with ExitStack() as stack:
        if room is None:
            room = stack.enter_context(rooms_for(config)).engines
        size = layout(config).engine_parallel_size
        try:
            workers = RayGroup(
                make, [config, model_path, weights_from], reservation=room, deadline_s=config.cluster.worker_timeout_s,
                environment={"OMP_NUM_THREADS": str(config.cluster.cpu_threads or 1)}, ranks_together=size,
            )  # fmt: skip
        except RankError as error:
            if isinstance(error.__cause__, GrpoError):
                raise error.__cause__ from error
            raise
        return Engines(workers, size, stack.pop_all())
