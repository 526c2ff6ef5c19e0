"""The table: where every resource has to be in every phase. Nothing here moves anything or knows what a tensor is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpo.placement.resources import ENGINE, POLICY, Residence, Resource
from grpo.telemetry.timers import PHASES, Phase

GPU, CPU, ABSENT = Residence.GPU, Residence.CPU, Residence.ABSENT

# A missing resource stays where the phase before has left it.
Row = Mapping[Resource, Residence]
PlanName = Literal["colocated", "separate"]
SleepLevel = Literal[0, 1, 2]

GENERATING: tuple[Phase, ...] = ("generation", "validation")
WORKING: tuple[Phase, ...] = ("logprobs", "policy_training", "checkpoint")
ON_NO_DEVICE: tuple[Phase, ...] = ("data", "rewards", "advantages")


@dataclass(frozen=True)
class Sharing:
    """What policy and engine give up to each other on the GPUs that they share."""

    offload_optimizer: bool = False
    offload_parameters: bool = False
    offload_optimizer_for_logprob: bool = False
    offload_reference: bool = False
    sleep_level: SleepLevel = 0


@dataclass(frozen=True)
class Plan:
    """Rows by phase; `sleep_level` is how the engine sleeps where a row wants its weights off the GPU."""

    name: PlanName
    rows: Mapping[Phase, Row]
    sleep_level: SleepLevel

    def residences(self, resource: Resource) -> frozenset[Residence]:
        """Where the resource ever is. What a plan never asks for is no legal move in it."""
        return frozenset(row[resource] for row in self.rows.values() if resource in row)


def colocated(sharing: Sharing, *, reference: bool) -> Plan:
    """Policy and engine on the same GPUs, each phase with what it needs and, where configured, no more.

    Gradients have no content between updates: they are freed, not copied, wherever the optimizer state is away. A
    checkpoint reads masters and moments where they are used, so the engine sleeps meanwhile as it does in training. A
    refit asks nothing of the KV cache: after training it is given up and wakes last, with the generation.
    """
    rows: dict[Phase, Row] = {phase: {} for phase in ON_NO_DEVICE}
    for phase in ("refit", *GENERATING):
        rows[phase] = _policy_row(
            parameters_away=sharing.offload_parameters and phase != "refit",
            optimizer_away=sharing.offload_optimizer,
            reference=_reference(reference, away=sharing.offload_reference),
        ) | {Resource.ENGINE_WEIGHTS: GPU}
    for phase in GENERATING:
        rows[phase] = {**rows[phase], Resource.ENGINE_KV_CACHE: GPU}
    for phase in WORKING:
        scoring = phase == "logprobs"
        rows[phase] = _policy_row(
            parameters_away=False,
            optimizer_away=scoring and (sharing.offload_optimizer or sharing.offload_optimizer_for_logprob),
            reference=_reference(reference, away=sharing.offload_reference and not scoring),
        ) | _asleep(sharing.sleep_level)
    return Plan("colocated", {phase: rows[phase] for phase in PHASES}, sharing.sleep_level)


def separate(*, reference: bool) -> Plan:
    """Policy and engine on GPUs of their own: everything stays there in every phase, so nothing can be offloaded."""
    row = _policy_row(parameters_away=False, optimizer_away=False, reference=_reference(reference, away=False))
    row |= dict.fromkeys(ENGINE, GPU)
    return Plan("separate", dict.fromkeys(PHASES, row), 0)


def _policy_row(*, parameters_away: bool, optimizer_away: bool, reference: Residence) -> dict[Resource, Residence]:
    parameters, gradients, optimizer, references = POLICY
    return {
        parameters: CPU if parameters_away else GPU,
        gradients: ABSENT if optimizer_away else GPU,
        optimizer: CPU if optimizer_away else GPU,
        references: reference,
    }


def _reference(present: bool, *, away: bool) -> Residence:  # noqa: FBT001 (private)
    if not present:
        return ABSENT
    return CPU if away else GPU


def _asleep(level: SleepLevel) -> dict[Resource, Residence]:
    if level == 0:
        return dict.fromkeys(ENGINE, GPU)
    return {Resource.ENGINE_WEIGHTS: CPU if level == 1 else ABSENT, Resource.ENGINE_KV_CACHE: ABSENT}
