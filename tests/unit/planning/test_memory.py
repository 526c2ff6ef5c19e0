"""Bytes of whole recipes worked out apart from the code."""

import pytest

from grpo.planning.memory import policy_state
from grpo.planning.resident import Resident

EIGHT = 8_030_261_248
CONTEXT = 644_245_094
BUCKETS = 2 * 2 * 4096 * 128256  # each as large as the embedding


def phase(plan, name):
    (found,) = [each for each in plan.memory if each.phase == name]
    return found.bytes


def test_eight_billion_over_eight_ranks_of_fsdp(planned):
    plan = planned("grpo_math_8b")
    training, layer, outer = phase(plan, "policy_training"), 218_112_000, 2 * 4096 * 128256 + 4096
    assert training["processes"] == 2 * CONTEXT
    assert training["parameters"] == training["gradients"] == 4 * EIGHT / 8
    assert training["optimizer"] == 8 * EIGHT / 8
    assert training["gathered"] == 2 * (outer + 2 * layer) + 2 * outer + 6 * layer
    a_layer = 2 * (8 * 4096 + 4) + 2 * 4 * 4096 + 4 * 32 + 8 * 14336  # packed: keys and values repeated
    kept = 4096 * (32 * a_layer + 8 * 4096)
    assert training["activations"] == kept + 4096 * (6 * 14336 + 2 * 4096)
    chunk = (512 << 20) // (4 * 128256)
    assert training["logits"] == chunk * 128256 * 8 + 4 * 4096 * 128256


def test_larger_buckets_take_more_and_one_process_has_none(planned):
    larger = planned("grpo_math_8b", f"policy.generation.refit.bucket_bytes={3 << 30}")
    assert {each.bytes["refit buckets"] for each in larger.memory} == {6 * 2**30}
    assert not any("refit buckets" in each.bytes for each in planned("grpo_math_1b").memory)


def test_the_other_phases_of_eight_billion(planned):
    plan = planned("grpo_math_8b")
    assert phase(plan, "refit") == {
        "processes": 2 * CONTEXT, "parameters": 4 * EIGHT / 8, "refit buckets": BUCKETS, "engine weights": 2 * EIGHT,
    }  # fmt: skip
    scoring = phase(plan, "logprobs")
    assert scoring["reference"] == 2 * EIGHT / 8
    assert "optimizer" not in scoring
    assert "parameters" not in phase(plan, "generation")
    assert sum(phase(plan, "generation").values()) == pytest.approx(0.6 * 84942979072 + CONTEXT + BUCKETS)


def test_megatron_takes_eighteen_bytes_a_parameter_without_data_parallel_ranks(planned):
    plan = planned("grpo_math_8b_megatron", "cluster.gpus_per_node=2")
    first, last = (policy_state(plan.setting, stage) for stage in (0, 1))
    held = 16 * 218_112_000 + 4096 * 128256
    assert (first.parameters, first.gradients, first.optimizer) == (2 * held, 4 * held, 12 * held)
    assert last.parameters == 2 * (held + 4096)
    assert first.reference == 2 * held
    shared = policy_state(planned("grpo_math_8b_megatron").setting, 0)
    assert shared.optimizer == 3 * held  # four copies


def test_one_process_has_masters_and_a_rounded_copy(planned):
    plan = planned("grpo_math_1b")
    training = phase(plan, "policy_training")
    parameters = plan.setting.model.parameters
    assert training["processes"] == CONTEXT
    assert (training["parameters"], training["gradients"]) == (6 * parameters, 4 * parameters)
    assert training["optimizer"] == 8 * parameters
    assert training["gathered"] == 0
    float32 = phase(planned("grpo_math_1b", "policy.precision=float32"), "policy_training")
    assert float32["parameters"] == 4 * parameters


def test_one_copy_of_a_model_keeps_what_it_gathers(planned):
    plan = planned("grpo_math_8b", "policy.dtensor_cfg.tensor_parallel_size=8")
    layer = (218_112_000 - 2 * 4096) // 8 + 2 * 4096
    assert policy_state(plan.setting, 0).gathered == 2 * (2 * 4096 * 128256 // 8 + 4096 + 32 * layer)


def test_the_first_stage_has_most_micro_batches_in_flight(planned):
    plan = planned("grpo_math_70b_megatron", completion_tokens=395)
    training = phase(plan, "policy_training")
    assert training["logits"] == 0
    a_layer = 2 * (4 * 8192 + 4) / 4 + (2 * 4 * 8192 + 4 * 64 + 8 * 28672) / 4
    kept = 4 * 4096 * (20 * a_layer + 8 * 8192)
    assert training["activations"] == pytest.approx(kept + 4096 * (6 * 28672 / 4 + 2 * 8192))


def test_what_stays_resident_is_there_while_the_engine_generates(planned):
    none, optimizer, everything = (
        planned("grpo_math_8b", resident=each) for each in (Resident.NONE, Resident.OPTIMIZER, Resident.ALL)
    )
    assert phase(optimizer, "generation")["optimizer"] == EIGHT
    assert phase(optimizer, "generation").get("parameters") is None
    assert phase(everything, "generation").keys() >= {"parameters", "optimizer", "reference"}
    assert phase(everything, "policy_training")["kv cache"] == everything.engine.kv_cache
    assert "kv cache" not in phase(none, "policy_training")


def test_a_separate_engine_and_the_trainer_have_their_own_gpus(planned):
    plan = planned(
        "grpo_math_8b", "policy.generation.colocated.enabled=false",
        "policy.generation.colocated.resources.gpus_per_node=4",
    )  # fmt: skip
    assert [each.gpus for each in plan.memory] == ["training", "generation", "training", "training"]
    engine = {"engine weights", "engine workspace", "kv cache"}
    assert phase(plan, "generation").keys() == {"processes", "refit buckets"} | engine
    assert phase(plan, "logprobs")["optimizer"] == 8 * EIGHT / 4  # never offloaded
    assert phase(plan, "policy_training")["reference"] == 2 * EIGHT / 4


def test_offloaded_parameters_are_on_the_host(planned):
    plan = planned("grpo_math_8b", "policy.dtensor_cfg.cpu_offload=true")
    training = phase(plan, "policy_training")
    assert training["parameters"] == training["gradients"] == training["optimizer"] == 0
    assert "reference" not in training
    assert training["gathered"] > 0


def test_offloaded_parameters_of_one_gpu_come_layer_by_layer(planned):
    overrides = ["policy.dtensor_cfg.cpu_offload=true", "cluster.gpus_per_node=1"]
    one, eight = (phase(planned("grpo_math_8b", *each), "policy_training") for each in (overrides, overrides[:1]))
    assert one["parameters"] == 0
    assert one["gathered"] == eight["gathered"]


def test_without_the_distributed_optimizer_every_copy_holds_masters_and_moments(planned):
    whole = planned(
        "grpo_math_8b_megatron",
        "policy.megatron_cfg.distributed_data_parallel_config.use_distributed_optimizer=false",
    )
    shared = planned("grpo_math_8b_megatron")
    assert (
        policy_state(whole.setting, 0).optimizer
        == shared.setting.parallel.data * policy_state(shared.setting, 0).optimizer
    )
