"""A plan follows the placement keys, phase by phase. Bytes are worked out apart from the code."""

import pytest

from grpo.errors import ConfigError
from grpo.placement.plan import plan_of
from grpo.placement.resources import Residence, Resource
from grpo.planning.memory import policy_state
from grpo.planning.repair import changes_that_fit
from grpo.planning.resident import Resident, moves_of_a_step, placement_of

EIGHT = 8_030_261_248
SHARING = "policy.generation.colocated"
KEYS = {
    "optimizer": f"{SHARING}.offload_optimizer=true",
    "parameters": f"{SHARING}.offload_parameters=true",
    "optimizer for log-probs": "policy.offload_optimizer_for_logprob=true",
    "reference": "policy.offload_reference=true",
    "sleep": f"{SHARING}.sleep_level=2",
    "sleep, level one": f"{SHARING}.sleep_level=1",
}
APART = (f"{SHARING}.enabled=false", f"{SHARING}.resources.gpus_per_node=4")
ENGINE = {"engine weights", "engine workspace", "kv cache"}
POLICY = {"parameters", "optimizer", "reference"}
TRAINING = {"gradients", "gathered", "activations", "logits"}
SCORING = {"gathered", "activations", "logits"}


def configured(planned, *overrides, recipe="grpo_math_8b"):
    return planned(recipe, *overrides, resident=Resident.CONFIGURED)


def held(plan):
    return {each.phase: each.bytes.keys() - {"processes", "refit buckets"} for each in plan.memory}


@pytest.mark.parametrize(
    ("keys", "refit", "generation", "logprobs", "training"),  # what is on the GPUs
    [
        ((), POLICY | ENGINE, POLICY | ENGINE, POLICY | ENGINE, POLICY | ENGINE),
        (["sleep"], POLICY | {"engine weights"}, POLICY | ENGINE, POLICY, POLICY),
        (["sleep, level one"], POLICY | {"engine weights"}, POLICY | ENGINE, POLICY, POLICY),
        (["optimizer"], {"parameters", "reference"} | ENGINE, {"parameters", "reference"} | ENGINE,
         {"parameters", "reference"} | ENGINE, POLICY | ENGINE),
        (["parameters"], POLICY | ENGINE, {"optimizer", "reference"} | ENGINE, POLICY | ENGINE, POLICY | ENGINE),
        (["optimizer for log-probs"], POLICY | ENGINE, POLICY | ENGINE, {"parameters", "reference"} | ENGINE,
         POLICY | ENGINE),
        (["reference"], {"parameters", "optimizer"} | ENGINE, {"parameters", "optimizer"} | ENGINE, POLICY | ENGINE,
         {"parameters", "optimizer"} | ENGINE),
        (["optimizer", "parameters", "reference", "sleep"], {"parameters", "engine weights"}, ENGINE,
         {"parameters", "reference"}, {"parameters", "optimizer"}),
    ],
)  # fmt: skip
def test_each_phase_has_what_the_keys_leave_there(planned, keys, refit, generation, logprobs, training):  # noqa: PLR0917 (a case)
    assert held(configured(planned, *(KEYS[key] for key in keys))) == {
        "refit": refit, "generation": generation, "logprobs": logprobs | SCORING,
        "policy_training": training | TRAINING,
    }  # fmt: skip


def test_the_plan_and_the_run_have_one_table(planned):
    for keys in ([], *([key] for key in KEYS.values())):
        config = configured(planned, *keys).setting.config
        assert placement_of(config, Resident.CONFIGURED) == plan_of(config)
    everything = [KEYS[key] for key in ("optimizer", "parameters", "reference", "sleep")]
    config = configured(planned, *everything).setting.config
    assert placement_of(config, Resident.NONE) == plan_of(config)
    for resident in Resident:
        apart = planned("grpo_math_8b", *APART, resident=resident).setting
        assert apart.placement == plan_of(apart.config)


def test_masters_beside_rounded_parameters_go_where_the_optimizer_goes(planned):
    plan = configured(planned, KEYS["optimizer"], recipe="grpo_math_1b")
    parameters = plan.setting.model.parameters
    state = policy_state(plan.setting, 0)
    assert (state.masters, state.parameters) == (4 * parameters, 6 * parameters)
    by_phase = {each.phase: each.bytes for each in plan.memory}
    assert by_phase["generation"]["parameters"] == by_phase["logprobs"]["parameters"] == 2 * parameters
    assert by_phase["policy_training"]["parameters"] == 6 * parameters
    copies = host_copies(plan)
    assert copies["refit"] == {"optimizer offload": pytest.approx(12 * parameters / 54e9)}


def test_megatrons_gradient_buffers_stay_with_the_optimizer(planned):
    plain = configured(planned, recipe="grpo_math_8b_megatron")
    last = policy_state(plain.setting, 1).gradients
    generation = {each.phase: each.bytes for each in plain.memory}["generation"]
    assert generation["gradients"] == last == 4 * (16 * 218_112_000 + 4096 * 128256 + 4096)
    freed = configured(planned, KEYS["optimizer"], recipe="grpo_math_8b_megatron")
    assert "gradients" not in {each.phase: each.bytes for each in freed.memory}["generation"]


def host_copies(plan):
    return {
        each.phase: {part.name: part.seconds for part in each.parts if part.bound == "host copies"}
        for each in plan.times
    }


def test_copies_to_the_host_are_those_of_the_keys(planned):
    none = {"refit": {}, "generation": {}, "logprobs": {}, "policy_training": {}, "other": {}}
    shard = 54e9 * 8
    copies = {
        "optimizer": {"refit": {"optimizer offload": 8 / shard}, "policy_training": {"optimizer onload": 8 / shard}},
        "parameters": {"refit": {"parameter offload": 4 / shard}, "logprobs": {"parameter onload": 4 / shard}},
        "optimizer for log-probs": {
            "logprobs": {"optimizer offload": 8 / shard}, "policy_training": {"optimizer onload": 8 / shard},
        },
        "reference": {"logprobs": {"reference onload": 2 / shard}},
        "sleep": {},
        "sleep, level one": {
            "generation": {"engine weights sleep": 2 / 54e9}, "refit": {"engine weights wake": 2 / 54e9},
        },
    }  # fmt: skip
    for key, expected in copies.items():
        found = host_copies(configured(planned, KEYS[key]))
        wanted = none | expected
        assert found.keys() == wanted.keys(), key
        for phase, parts in found.items():
            assert parts == pytest.approx({name: each * EIGHT for name, each in wanted[phase].items()}), (key, phase)


def test_without_a_log_prob_phase_what_training_needs_comes_back_there(planned):
    keys = [KEYS[key] for key in ("optimizer", "parameters", "sleep")]
    plan = configured(planned, *keys, "loss_fn.reference_policy_kl_penalty=0").setting.placement
    back = [each for each in moves_of_a_step(plan, scores=False) if each.target == Residence.GPU]
    by_phase = {each.resource: each.counts_in for each in back}
    assert by_phase[Resource.POLICY_PARAMETERS] == by_phase[Resource.OPTIMIZER_STATE] == "policy_training"


def test_what_the_trainer_refuses_is_not_planned(planned):
    with pytest.raises(ConfigError, match=r"context_parallel_size=2: this backend has no context parallel"):
        configured(planned, "policy.dtensor_cfg.context_parallel_size=2")


def test_placement_keys_are_proposed_one_after_the_other(planned):
    seen = []

    def attempt(further):
        seen.append(tuple(further))
        return configured(planned, *further)

    plan = configured(planned)
    assert not plan.fits, "policy and engine at once are too much for 80 GB"
    first = changes_that_fit(plan, attempt)[0]
    assert first.overrides == seen[len(first.overrides) - 1]
    assert first.overrides[0] == KEYS["sleep"]
    assert first.plan.fits


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_refit_takes_what_its_transport_takes(planned, tensor):
    engines = f"policy.generation.vllm_cfg.tensor_parallel_size={tensor}"
    shared = {part.name: part.seconds for each in configured(planned, engines).times for part in each.parts}
    weights = 2 * EIGHT / tensor  # norms are on every rank: a little more
    assert shared["transfer into the engine"] == pytest.approx(0.02 + weights / 0.74e12, rel=1e-3)
    apart = {part.name: part.seconds for each in configured(planned, *APART, engines).times for part in each.parts}
    assert apart["broadcast to engines"] == pytest.approx(2 * EIGHT / 221.4e9)
    assert apart["load into the engine"] == pytest.approx(2 * weights / 2.97e12, rel=1e-3)


@pytest.mark.parametrize(("tensor", "engines"), [(1, 8), (2, 4), (8, 1)])
def test_every_gpu_has_its_part_of_an_engine_and_its_own_cache(planned, tensor, engines):
    plan = configured(planned, f"policy.generation.vllm_cfg.tensor_parallel_size={tensor}")
    assert plan.generation.engines == engines
    assert plan.engine.weights == pytest.approx(2 * EIGHT / tensor, rel=1e-3)
    assert plan.engine.kv_tokens == int(plan.engine.kv_cache // (2 * 32 * (8 // tensor) * 128 * 2))
    budget = 0.6 * 84942979072
    assert plan.engine.weights + plan.engine.workspace + plan.engine.kv_cache + 644_245_094 == pytest.approx(budget)
