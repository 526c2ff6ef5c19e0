import pytest

from grpo.planning.resident import Resident
from grpo.planning.timing import Part, PhaseTime

PINNED = (
    "policy.generation.max_new_tokens=896",
    "policy.generation.min_new_tokens=896",
    "grpo.num_prompts_per_step=16",
)


def times(plan):
    return {each.phase: {part.name: part.seconds for part in each.parts} for each in plan.times}


def test_training_of_8b_on_eight_gpus_by_hand(planned, partition):
    plan = planned("grpo_math_8b", *PINNED)
    found, work = times(plan)["policy_training"], plan.setting.workload.training
    assert work.micro_batches == 16  # 64 sequences of 1023 tokens a rank, four a row of 4096
    weights = 32 * 218_103_808
    forward, attention = 2 * 64 * 1023 * weights + 2 * 64 * 896 * 4096 * 128256, 2 * 64 * 1023**2 * 4096 * 32
    assert found["forward: matrix products"] == pytest.approx(forward / 667e12)
    assert found["forward: attention"] == pytest.approx(attention / 122e12)
    assert found["backward: attention"] == pytest.approx(2 * attention / 122e12)
    head = 2 * 64 * 896 * 4096 * 128256  # logits are made again chunk by chunk
    assert found["backward: matrix products"] == pytest.approx((2 * forward + head) / 667e12)
    assert found["optimizer step"] == pytest.approx(32 * 8_030_261_248 / 8 / partition.memory_bandwidth.value)
    assert found["optimizer onload"] == pytest.approx(8_030_261_248 / 54e9)
    assert "forward: fsdp beyond computation" not in found


def test_recomputing_costs_a_forward_pass(planned):
    without = times(planned("grpo_math_8b", *PINNED))["policy_training"]
    again = times(planned("grpo_math_8b", *PINNED, "policy.dtensor_cfg.activation_checkpointing=true"))[
        "policy_training"
    ]
    head = 2 * 64 * 896 * 4096 * 128256 / 667e12
    more = again["backward: matrix products"] - without["backward: matrix products"]
    assert more == pytest.approx(without["forward: matrix products"] - head)
    assert again["backward: attention"] == pytest.approx(3 * without["forward: attention"])


def test_other_kernels_of_8b_by_hand(planned, partition):
    again = "policy.dtensor_cfg.activation_checkpointing=true"
    without, recomputed = (times(planned("grpo_math_8b", *PINNED, *more))["policy_training"] for more in ((), (again,)))
    a_layer = 2 * (4 + 6) * 4096 + 4 * 5120 + 4 * 5120 + 6 * 14336
    layers, predicted = 64 * 1023 * 32 * a_layer, 64 * 896
    memory = partition.memory_bandwidth.value
    assert without["forward: other kernels"] == pytest.approx((layers + 8 * 128256 * predicted) / memory)
    chunk = (512 << 20) // (4 * 128256)
    chunks = 16 * -(-predicted // 16 // chunk)
    logits = (8 + 10) * 128256 * predicted + 8 * 4096 * 128256 * chunks
    assert without["backward: other kernels"] == pytest.approx((2 * layers + logits) / memory)
    assert recomputed["backward: other kernels"] == pytest.approx((3 * layers + logits) / memory)


def test_what_gathering_takes_beyond_computation_is_the_networks(planned):
    plan = planned("grpo_math_70b", completion_tokens=395)
    (training,) = [each for each in plan.times if each.phase == "policy_training"]
    assert training.binds == "network"
    parts = times(plan)["policy_training"]
    alone = {each.kind: each.seconds for each in plan.collectives if each.phase == "policy_training"}
    beside = parts["backward: matrix products"] + parts["backward: other kernels"]
    beside += parts["backward: attention"] + parts["backward: tensor parallel sums"]
    gathered = alone["fsdp all-gather, backward"] + alone["fsdp reduce-scatter"]
    assert parts["backward: fsdp beyond computation"] == pytest.approx(gathered - beside)


def test_a_pipeline_waits_for_its_stages_once_an_update(planned):
    plan = planned("grpo_math_70b_megatron", completion_tokens=395)
    parts, work = times(plan)["policy_training"], plan.setting.workload.training
    busy = sum(seconds for name, seconds in parts.items() if name.startswith(("forward", "backward")))
    assert parts["pipeline bubble"] == pytest.approx(busy / work.micro_batches * 3 * 4)


def test_what_stays_resident_is_not_copied(planned):
    copies = {}
    for resident in Resident:
        plan = planned("grpo_math_8b", resident=resident)
        copies[resident] = {part.name for each in plan.times for part in each.parts if part.bound == "host copies"}
    assert copies[Resident.ALL] == set()
    assert copies[Resident.OPTIMIZER] == {"parameter offload", "parameter onload", "reference onload"}
    assert copies[Resident.NONE] - copies[Resident.OPTIMIZER] == {"optimizer offload", "optimizer onload"}


def test_a_separate_trainer_copies_nothing_to_the_host(planned):
    plan = planned(
        "grpo_math_8b", "policy.generation.colocated.enabled=false",
        "policy.generation.colocated.resources.gpus_per_node=4",
    )  # fmt: skip
    assert not [part for each in plan.times for part in each.parts if part.bound == "host copies"]


def test_parameters_on_the_host_cross_it_every_micro_batch_and_are_updated_there(planned):
    plan = planned("grpo_math_8b", *PINNED, "policy.dtensor_cfg.cpu_offload=true")
    parts = times(plan)["policy_training"]
    assert parts["optimizer step on the CPU"] == pytest.approx(32 * 8_030_261_248 / 8 / (614e9 / 8))
    copied = 16 * 4 * 8_030_261_248 / 8 / 54e9
    busy = parts["forward: matrix products"] + parts["forward: other kernels"]
    assert parts.get("forward: host copies beyond computation", 0) == pytest.approx(max(0, copied - busy))


def test_verification_is_shared_by_the_processes(planned):
    assert times(planned("grpo_math_8b"))["other"]["verification"] == pytest.approx(2048 * 4.8e-3 / 8)


def test_a_phase_is_bound_by_what_most_seconds_go_to():
    phase = PhaseTime("refit", (Part("a", 2, "network"), Part("b", 1.5, "nvlink"), Part("c", 1, "nvlink")))
    assert (phase.seconds, phase.binds) == (4.5, "nvlink")


def test_megatrons_collectives_of_an_update(planned):
    section = "policy.megatron_cfg.distributed_data_parallel_config"
    shared = times(planned("grpo_math_70b_megatron"))["policy_training"]
    summed = times(planned("grpo_math_70b_megatron", f"{section}.use_distributed_optimizer=false"))["policy_training"]
    assert summed["gradient all-reduce"] == pytest.approx(2 * shared["gradient reduce-scatter"])
    assert "parameter all-gather" not in summed
    hidden = times(planned("grpo_math_70b_megatron", f"{section}.overlap_grad_reduce=true"))["policy_training"]
    assert hidden["parameter all-gather"] == shared["parameter all-gather"]
    passes = sum(seconds for name, seconds in shared.items() if name.startswith("backward"))
    work = planned("grpo_math_70b_megatron").setting.workload
    beside = passes * work.updates / work.training.micro_batches
    left = max(0.0, shared["gradient reduce-scatter"] - beside)
    assert hidden.get("gradient reduce-scatter", 0.0) == pytest.approx(left)
