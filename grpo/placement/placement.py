"""The one mover: makes what the table asks for true when a phase is entered."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from grpo.placement.errors import PlacementError
from grpo.placement.moves import Move, moves_into
from grpo.placement.resources import ENGINE, EngineTag, Residence, Resource
from grpo.placement.table import Plan
from grpo.telemetry.timers import Charge, Phase

_TAGS: Mapping[Resource, EngineTag] = {Resource.ENGINE_WEIGHTS: "weights", Resource.ENGINE_KV_CACHE: "kv_cache"}


class MovablePolicy(Protocol):
    """What placement needs of a policy."""

    def residences(self) -> Mapping[Resource, Residence]:
        """Where each of its resources is."""
        ...

    def move(self, resource: Resource, residence: Residence) -> int:
        """Move one, and return when it is there; the bytes that were copied.

        Raises:
            PlacementError: the plan of the configuration never has it there.
        """
        ...

    def release(self) -> Mapping[str, float]:
        """Give freed memory back to the driver, for other allocators to take; then what is held.

        GiB as `allocated_gib`, `reserved_gib` and `driver_gib` (the whole device); empty without a GPU.
        """
        ...


class MovableEngine(Protocol):
    """What placement needs of an engine."""

    def residences(self) -> Mapping[Resource, Residence]:
        """Where weights and KV cache are."""
        ...

    def sleep(self, level: Literal[1, 2]) -> None:
        """Give up the KV cache, and the weights: to host memory (1), or altogether (2)."""
        ...

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """Take memory again; weights that were given up have no values until they are updated."""
        ...


def sleep_until_needed(plan: Plan, engine: MovableEngine) -> None:
    """Let an engine that has just started sleep while the policy is loaded, where it sleeps in training."""
    if plan.sleep_level:
        engine.sleep(plan.sleep_level)


class Placement:
    """Keeps what the table says true. `enter` is called at the start of every phase; nothing else moves anything."""

    def __init__(self, plan: Plan, policy: MovablePolicy, engine: MovableEngine) -> None:
        self._plan, self._policy, self._engine = plan, policy, engine
        self._now = self._found()
        self._gib = {"memory/offloaded_gib": 0.0, "memory/onloaded_gib": 0.0}
        self._resident: dict[str, float] = {}

    def enter(self, phase: Phase) -> list[Charge]:
        """Move what `phase` needs elsewhere; the seconds that it took, by the phase and part that they belong to.

        Raises:
            PlacementError: a move is not allowed, or a resource is not where placement has left or brought it.
        """
        self._check(f"on entering phase {phase}")
        moves = moves_into(self._plan, self._now, phase)
        if not moves:
            return []
        charges = [self._timed(each) for each in _in_calls(moves)]
        self._now |= {each.resource: each.target for each in moves}
        self._check(f"after the moves into phase {phase}")
        return charges

    def step_metrics(self) -> dict[str, float]:
        """GiB copied each way since asked last, and what the policy held after its last offload; none without moves."""
        moved = any(self._gib.values())
        metrics = {**self._gib, **self._resident} if moved or self._resident else {}
        self._gib = dict.fromkeys(self._gib, 0.0)
        self._resident = {}
        return metrics

    def _timed(self, moves: Sequence[Move]) -> Charge:
        started = time.perf_counter()
        first = moves[0]
        if first.resource not in ENGINE:
            self._move_policy(moves, gives_way=first.counts_in == "refit")
        elif first.leaves:
            assert self._plan.sleep_level, "a plan without sleep has no row that asks for it"
            self._engine.sleep(self._plan.sleep_level)
        else:
            self._engine.wake([_TAGS[each.resource] for each in moves])
        return Charge(first.counts_in, first.part, time.perf_counter() - started)

    def _move_policy(self, moves: Sequence[Move], *, gives_way: bool) -> None:
        """With `gives_way` what leaves makes room for the engine, which has an allocator of its own."""
        copied = sum(self._policy.move(each.resource, each.target) for each in moves)
        leaves = moves[0].leaves
        self._gib[f"memory/{'offloaded' if leaves else 'onloaded'}_gib"] += copied / 2**30
        if leaves and gives_way:
            held = self._policy.release()
            self._resident = {f"memory/after_offload_{name}": value for name, value in held.items()}

    def _found(self) -> dict[Resource, Residence]:
        return {**self._policy.residences(), **self._engine.residences()}

    def _check(self, when: str) -> None:
        found = self._found()
        for resource, expected in self._now.items():
            if found[resource] != expected:
                raise PlacementError(
                    f"{when} of the {self._plan.name} plan {resource} is on {found[resource]}, but placement has left "
                    f"it on {expected}: nothing else may move it"
                )


def _in_calls(moves: Sequence[Move]) -> list[list[Move]]:
    """Neighbours that are one call of a worker, or are timed as one: an engine's sleep, the policy's offloads."""
    calls: list[list[Move]] = []
    for each in moves:
        if calls and (calls[-1][0].counts_in, calls[-1][0].part) == (each.counts_in, each.part):
            calls[-1].append(each)
        else:
            calls.append([each])
    return calls
