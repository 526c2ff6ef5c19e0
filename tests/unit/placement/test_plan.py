"""From keys to the table: each key, alone, has an effect."""

import pytest

from grpo.config import load_config
from grpo.placement.plan import plan_of
from grpo.placement.resources import POLICY, Residence, Resource
from grpo.placement.table import Sharing, colocated, separate

KL = "loss_fn.reference_policy_kl_penalty=0.1"
COLOCATED = "policy.generation.colocated"
KEYS = [
    (f"{COLOCATED}.offload_optimizer=true", {"offload_optimizer": True}),
    (f"{COLOCATED}.offload_parameters=true", {"offload_parameters": True}),
    ("policy.offload_optimizer_for_logprob=true", {"offload_optimizer_for_logprob": True}),
    ("policy.offload_reference=true", {"offload_reference": True}),
    (f"{COLOCATED}.sleep_level=1", {"sleep_level": 1}),
    (f"{COLOCATED}.sleep_level=2", {"sleep_level": 2}),
]


@pytest.mark.parametrize(("override", "sharing"), KEYS)
def test_each_key_is_one_setting(override, sharing):
    plan = plan_of(load_config("tiny", [KL, override]).config)
    assert plan == colocated(Sharing(**sharing), reference=True) != plan_of(load_config("tiny", [KL]).config)


def test_the_reference_is_there_with_a_kl_term_alone():
    with_term, without = (plan_of(load_config("tiny", overrides).config) for overrides in ([KL], []))
    assert with_term.residences(Resource.REFERENCE_PARAMETERS) == {Residence.GPU}
    assert without.residences(Resource.REFERENCE_PARAMETERS) == {Residence.ABSENT}


def test_without_colocation_the_plan_is_the_separate_one():
    config = load_config(
        "grpo_math_8b", [f"{COLOCATED}.enabled=false", f"{COLOCATED}.resources.gpus_per_node=4"]
    ).config
    assert plan_of(config) == separate(reference=True)
    assert all(plan_of(config).residences(each) == {Residence.GPU} for each in POLICY)


@pytest.mark.parametrize(("override", "sharing"), KEYS)
def test_a_run_on_the_cpu_is_told_that_nothing_moves(override, sharing):
    notes = load_config("tiny", [KL, override]).notes
    assert any(override.split("=")[0] in each and "moves nothing" in each for each in notes)
