"""Whether an engine is awake, and what it may be asked in that state. Every engine keeps one of these."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.placement.errors import PlacementError
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.placement.table import SleepLevel


class EngineResidence:
    """Weights and KV cache wake in this order, with a refit between them where the weights were given up."""

    def __init__(self) -> None:
        self.weights = Residence.GPU
        self.kv_cache = Residence.GPU
        self._filled = True

    def residences(self) -> dict[Resource, Residence]:
        return {Resource.ENGINE_WEIGHTS: self.weights, Resource.ENGINE_KV_CACHE: self.kv_cache}

    def fell_asleep(self, level: SleepLevel) -> None:
        """Raises PlacementError if its weights are not on the GPU."""
        self.need_weights("sleep")
        if level not in {1, 2}:
            raise PlacementError(f"an engine sleeps at level 1 or 2, not {level}")
        self.weights = Residence.CPU if level == 1 else Residence.ABSENT
        self.kv_cache = Residence.ABSENT
        self._filled = level == 1

    def woke(self, tags: Sequence[EngineTag]) -> None:
        """Raises PlacementError if the KV cache would be there before the weights and their values."""
        for tag in tags:
            if tag == "weights":
                self.weights = Residence.GPU
                continue
            if self.weights != Residence.GPU or not self._filled:
                state = f"on {self.weights}" if self.weights != Residence.GPU else "without values until a refit"
                raise PlacementError(f"{Resource.ENGINE_KV_CACHE} wakes last, but {Resource.ENGINE_WEIGHTS} is {state}")
            self.kv_cache = Residence.GPU

    def updated(self) -> None:
        """The weights have values again."""
        self._filled = True

    def need_weights(self, call: str) -> None:
        """Raise PlacementError unless the weights can be written."""
        self._need(call, Resource.ENGINE_WEIGHTS, self.weights)

    def need_all(self, call: str) -> None:
        """Raise PlacementError unless the engine can generate."""
        self.need_weights(call)
        self._need(call, Resource.ENGINE_KV_CACHE, self.kv_cache)

    def _need(self, call: str, resource: Resource, now: Residence) -> None:
        if now != Residence.GPU:
            raise PlacementError(f"{call} needs {resource} on {Residence.GPU}, but it is on {now}")
