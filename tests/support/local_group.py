"""A worker group whose workers are objects of this process, asked one after another."""

from collections.abc import Callable, Sequence
from typing import Any

from grpo.workers.groups.dispatches import Dispatches


class LocalGroup:
    """`WorkerGroup`; `make` is called with each rank. `calls` has what every rank was asked."""

    def __init__(self, world_size: int, make: Callable[[int], object]) -> None:
        self.workers = [make(rank) for rank in range(world_size)]
        self.calls: list[tuple[str, list[tuple[object, ...]]]] = []
        self.dispatches = Dispatches()
        self.ended = False

    @property
    def world_size(self) -> int:
        return len(self.workers)

    @property
    def hosts(self) -> list[str]:
        return ["here"] * self.world_size

    def call_all(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        return self.call_each(method, [arguments] * self.world_size, deadline_s)

    def call_each(
        self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None
    ) -> list[Any]:
        del deadline_s
        assert not self.ended, f"{method} after the end"
        self.calls.append((method, list(arguments)))
        return [getattr(worker, method)(*own) for worker, own in zip(self.workers, arguments, strict=True)]

    def call_one(self, rank: int, method: str, *arguments: object, deadline_s: float | None = None) -> Any:
        del deadline_s
        return getattr(self.workers[rank], method)(*arguments)

    def call_beside(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        return self.call_all(method, *arguments, deadline_s=deadline_s)

    def shutdown(self) -> None:
        self.ended = True
