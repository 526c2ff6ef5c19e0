"""The table itself: what its rows say, for every setting."""

import itertools

import pytest

from grpo.placement.resources import ENGINE, POLICY, Residence, Resource
from grpo.placement.table import ON_NO_DEVICE, Sharing, colocated, separate
from grpo.telemetry.timers import PHASES

GPU, CPU, ABSENT = Residence.GPU, Residence.CPU, Residence.ABSENT
SHARINGS = [Sharing(*each) for each in itertools.product(*[(False, True)] * 4, (0, 1, 2))]
USED = {
    "refit": {Resource.POLICY_PARAMETERS, Resource.ENGINE_WEIGHTS},
    "generation": set(ENGINE),
    "validation": set(ENGINE),
    "logprobs": {Resource.POLICY_PARAMETERS, Resource.REFERENCE_PARAMETERS},
    "policy_training": {Resource.POLICY_PARAMETERS, Resource.GRADIENTS, Resource.OPTIMIZER_STATE},
    "checkpoint": {Resource.POLICY_PARAMETERS, Resource.OPTIMIZER_STATE},
}


@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_phase_has_on_the_gpu_what_it_uses(sharing):
    plan = colocated(sharing, reference=True)
    assert tuple(plan.rows) == PHASES
    for phase, used in USED.items():
        assert {each for each in used if plan.rows[phase][each] != GPU} == set()


@pytest.mark.parametrize("reference", [False, True])
def test_a_separate_plan_has_everything_on_the_gpu_in_every_phase(reference):
    plan = separate(reference=reference)
    assert tuple(plan.rows) == PHASES
    for row in plan.rows.values():
        assert row == {
            **dict.fromkeys((*POLICY, *ENGINE), GPU),
            Resource.REFERENCE_PARAMETERS: GPU if reference else ABSENT,
        }
    assert all(len(plan.residences(each)) == 1 for each in (*POLICY, *ENGINE))


def test_without_settings_a_colocated_plan_moves_nothing_either():
    plan = colocated(Sharing(), reference=True)
    assert all(plan.residences(each) == {GPU} for each in (*POLICY, *ENGINE))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_phases_that_use_no_device_ask_for_nothing(sharing):
    assert all(not colocated(sharing, reference=True).rows[phase] for phase in ON_NO_DEVICE)


# Where each setting, alone, puts what it is about; everything else stays on the GPU.
AWAY = [
    ("offload_optimizer", True, Resource.OPTIMIZER_STATE, CPU, {"refit", "generation", "validation", "logprobs"}),
    ("offload_optimizer", True, Resource.GRADIENTS, ABSENT, {"refit", "generation", "validation", "logprobs"}),
    ("offload_parameters", True, Resource.POLICY_PARAMETERS, CPU, {"generation", "validation"}),
    ("offload_optimizer_for_logprob", True, Resource.OPTIMIZER_STATE, CPU, {"logprobs"}),
    ("offload_optimizer_for_logprob", True, Resource.GRADIENTS, ABSENT, {"logprobs"}),
    ("offload_reference", True, Resource.REFERENCE_PARAMETERS, CPU, set(USED) - {"logprobs"}),
    ("sleep_level", 1, Resource.ENGINE_WEIGHTS, CPU, {"logprobs", "policy_training", "checkpoint"}),
    ("sleep_level", 2, Resource.ENGINE_WEIGHTS, ABSENT, {"logprobs", "policy_training", "checkpoint"}),
    ("sleep_level", 1, Resource.ENGINE_KV_CACHE, ABSENT, {"logprobs", "policy_training", "checkpoint"}),
    ("sleep_level", 2, Resource.ENGINE_KV_CACHE, ABSENT, {"logprobs", "policy_training", "checkpoint"}),
]


@pytest.mark.parametrize(("name", "value", "resource", "residence", "phases"), AWAY)
def test_a_setting_moves_what_it_is_about_and_nothing_else(name, value, resource, residence, phases):
    plan = colocated(Sharing(**{name: value}), reference=True)
    about = {each[2] for each in AWAY if each[0] == name}
    for phase, row in plan.rows.items():
        if resource in row:
            assert row[resource] == (residence if phase in phases else GPU), phase
        assert all(row[each] == GPU for each in row if each not in about)


def test_a_reference_that_is_not_there_is_nowhere():
    plan = colocated(Sharing(offload_reference=True), reference=False)
    assert plan.residences(Resource.REFERENCE_PARAMETERS) == {ABSENT}
