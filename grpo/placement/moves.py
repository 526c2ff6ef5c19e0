"""From where things are to where a phase needs them: the moves, in order, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpo.placement.errors import PlacementError
from grpo.placement.resources import ENGINE, Residence, Resource
from grpo.placement.table import ABSENT, CPU, GENERATING, GPU, Plan
from grpo.telemetry.timers import Phase

_HOST_COPIES = frozenset({(GPU, CPU), (CPU, GPU)})
_REMAKES = frozenset({(GPU, ABSENT), (ABSENT, GPU)})

# By resource, the changes of residence that a worker can make at all; the plan narrows them.
POSSIBLE: Mapping[Resource, frozenset[tuple[Residence, Residence]]] = {
    Resource.POLICY_PARAMETERS: _HOST_COPIES,
    Resource.GRADIENTS: _REMAKES,
    Resource.OPTIMIZER_STATE: _HOST_COPIES,
    Resource.REFERENCE_PARAMETERS: _HOST_COPIES,
    Resource.ENGINE_WEIGHTS: _HOST_COPIES | _REMAKES,  # what is absent comes back with a refit alone
    Resource.ENGINE_KV_CACHE: _REMAKES,
}

# What leaves goes first, what arrives comes after. The KV cache is the last to come: after the weights and the refit.
_LEAVING = (
    Resource.ENGINE_KV_CACHE,
    Resource.ENGINE_WEIGHTS,
    Resource.GRADIENTS,
    Resource.OPTIMIZER_STATE,
    Resource.REFERENCE_PARAMETERS,
    Resource.POLICY_PARAMETERS,
)
_ARRIVING = tuple(reversed(_LEAVING))

Part = Literal["offload", "onload", "sleep", "wake"]


@dataclass(frozen=True)
class Move:
    """One resource from one residence to another, and where its seconds belong."""

    resource: Resource
    source: Residence
    target: Residence
    counts_in: Phase
    part: Part

    @property
    def leaves(self) -> bool:
        """Whether it frees GPU memory."""
        return self.source == GPU


def moves_into(plan: Plan, now: Mapping[Resource, Residence], phase: Phase) -> list[Move]:
    """The moves that lead from `now` into `phase`; none where everything is in its place.

    An engine's sleep counts in `generation`, for whose sake it was awake. Its waking, and what leaves the GPU for it,
    count in `refit`: all that is between the end of training and an engine that is ready. Everything else counts in the
    phase that needs it.

    Raises:
        PlacementError: a move that the plan does not allow.
    """
    row = plan.rows[phase]
    changes = {each: (now[each], target) for each, target in row.items() if now[each] != target}
    for resource, (source, target) in changes.items():
        _check(plan, phase, resource, source, target)
    leaving = [each for each in _LEAVING if each in changes and changes[each][0] == GPU]
    arriving = [each for each in _ARRIVING if each in changes and changes[each][1] == GPU]
    return [_move(each, *changes[each], phase) for each in (*leaving, *arriving)]


def _check(plan: Plan, phase: Phase, resource: Resource, source: Residence, target: Residence) -> None:
    told = f"phase {phase} of the {plan.name} plan needs {resource} on {target}, but it is on {source}"
    if (source, target) not in POSSIBLE[resource]:
        raise PlacementError(f"{told}: there is no such move from {source} to {target}")
    elsewhere = plan.residences(resource)
    if source not in elsewhere:
        only = ", ".join(sorted(elsewhere))
        raise PlacementError(
            f"{told}: this plan never has it there (only on {only}), so something else than placement has moved it "
            f"from {target} to {source}"
        )
    if resource == Resource.ENGINE_WEIGHTS and source == ABSENT and phase != "refit":
        raise PlacementError(f"{told}: weights that were given up come back with a refit alone")


def _move(resource: Resource, source: Residence, target: Residence, phase: Phase) -> Move:
    leaves = source == GPU
    if resource in ENGINE:
        return Move(resource, source, target, *(("generation", "sleep") if leaves else ("refit", "wake")))
    counts_in: Phase = "refit" if leaves and phase in GENERATING else phase
    return Move(resource, source, target, counts_in, "offload" if leaves else "onload")
