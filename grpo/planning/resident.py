"""What of policy and engine is on the GPUs in each phase: by the placement keys, or by an assumption instead."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from grpo.config.schema import Config
from grpo.placement.moves import Move, moves_into
from grpo.placement.plan import plan_of
from grpo.placement.resources import Residence, Resource
from grpo.placement.table import Plan, Sharing, colocated
from grpo.telemetry.timers import Phase
from grpo.workers.policy.options import needs_reference


class Resident(StrEnum):
    """What stays on the GPUs of a colocated run while the engine generates."""

    CONFIGURED = "configured"  # by the placement keys, as in a run
    NONE = "none"  # as with all of the placement keys
    OPTIMIZER = "optimizer"  # as with all of them but `offload_optimizer`
    ALL = "all"  # as with none of them


_SHARINGS = {
    Resident.NONE: Sharing(offload_optimizer=True, offload_parameters=True, offload_reference=True, sleep_level=2),
    Resident.OPTIMIZER: Sharing(offload_parameters=True, offload_reference=True, sleep_level=2),
    Resident.ALL: Sharing(),
}


def placement_of(config: Config, resident: Resident) -> Plan:
    """The table of the run. A separate plan is what it is, whatever `resident` says."""
    if resident == Resident.CONFIGURED or not config.policy.generation.colocated.enabled:
        return plan_of(config)
    return colocated(_SHARINGS[resident], reference=needs_reference(config))


def residences(plan: Plan, phase: Phase) -> Mapping[Resource, Residence]:
    """Where everything is in a phase of a step; what its row leaves out is as after the training before it."""
    return {**plan.rows["policy_training"], **plan.rows[phase]}


def moves_of_a_step(plan: Plan, *, scores: bool) -> list[Move]:
    """The moves of a whole step, from the training before it to its own; `scores`: it has a log-prob phase."""
    now = dict(plan.rows["policy_training"])
    phases: tuple[Phase, ...] = ("refit", "generation", *(("logprobs",) if scores else ()), "policy_training")
    found: list[Move] = []
    for phase in phases:
        moves = moves_into(plan, now, phase)
        now |= {each.resource: each.target for each in moves}
        found += moves
    return found
