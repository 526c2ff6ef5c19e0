"""Bytes of the 70B layouts worked out apart from the code."""

import pytest

GB = 1e9
SEVENTY = 70_553_706_496
NORMS = 161 * 8192  # on every tensor parallel rank


def by_kind(plan, phase):
    return {each.kind: each for each in plan.collectives if each.phase == phase}


def test_fsdp_gathers_and_scatters_every_micro_batch(planned):
    plan = planned("grpo_math_70b", completion_tokens=395)
    found = by_kind(plan, "policy_training")
    micro_batches = plan.setting.workload.training.micro_batches
    local = (SEVENTY - NORMS) / 8 + NORMS
    outer = (2 * 8192 * 128256) / 8 + 8192
    assert found["fsdp all-gather"].bytes == pytest.approx(micro_batches * 7 / 8 * 2 * local)
    assert found["fsdp all-gather, backward"].bytes == pytest.approx(micro_batches * 7 / 8 * 2 * (local - outer))
    assert found["fsdp reduce-scatter"].bytes == pytest.approx(micro_batches * 7 / 8 * 4 * local)
    assert found["fsdp reduce-scatter"].link == "network"
    assert found["fsdp reduce-scatter"].seconds == pytest.approx(found["fsdp reduce-scatter"].bytes / 50e9)


def test_two_sums_a_layer_and_direction(planned):
    plan = planned("grpo_math_70b", completion_tokens=395)
    states = plan.setting.workload.training.computed_tokens * 8192 * 2
    found = by_kind(plan, "policy_training")
    assert found["tensor parallel sums"].bytes == 80 * 2 * 2 * 7 / 8 * states
    assert found["tensor parallel sums, backward"].bytes == found["tensor parallel sums"].bytes
    again = planned("grpo_math_70b", "policy.dtensor_cfg.activation_checkpointing=true", completion_tokens=395)
    assert by_kind(again, "policy_training")["tensor parallel sums, backward"].bytes == 2 * 80 * 2 * 2 * 7 / 8 * states


def test_megatron_sends_between_stages_and_reduces_once_an_update(planned):
    plan = planned("grpo_math_70b_megatron", completion_tokens=395)
    found = by_kind(plan, "policy_training")
    work = plan.setting.workload.training
    assert found["pipeline sends"].bytes == work.computed_tokens * 8192 * 2 / 4  # shared by four, as the sequence is
    assert found["tensor parallel sums"].bytes == 80 / 4 * 2 * 2 * 3 / 4 * work.computed_tokens * 8192 * 2
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    last = (20 * layer + 8192 * 128256) / 4 + 41 * 8192
    assert found["gradient reduce-scatter"].bytes == 4 * 3 / 4 * 4 * last
    assert found["parameter all-gather"].bytes == 4 * 3 / 4 * 2 * last


def test_log_probs_are_two_passes(planned):
    both = by_kind(planned("grpo_math_70b"), "logprobs")
    one = by_kind(planned("grpo_math_70b", "loss_fn.reference_policy_kl_penalty=0"), "logprobs")
    assert both["fsdp all-gather"].bytes == 2 * one["fsdp all-gather"].bytes


def test_a_refit_gathers_the_model_over_every_kind_of_rank(planned):
    dtensor = by_kind(planned("grpo_math_70b"), "refit")
    assert dtensor["gather over data parallel ranks"].bytes == pytest.approx(7 / 8 * 2 * SEVENTY / 8)
    assert dtensor["gather over tensor parallel ranks"].bytes == pytest.approx(7 / 8 * 2 * SEVENTY)
    megatron = by_kind(planned("grpo_math_70b_megatron"), "refit")
    assert megatron["gather over pipeline stages"].bytes == 3 / 4 * 2 * SEVENTY
    assert megatron["gather over pipeline stages"].link == "network"


def test_a_separate_engine_is_sent_the_model(planned):
    separate = (
        "policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.num_nodes=4",
    )  # fmt: skip
    found = by_kind(planned("grpo_math_70b", *separate), "refit")
    assert found["broadcast to engines"].bytes == 2 * SEVENTY
    assert found["broadcast to engines"].link == "network"
    inside = ("policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=4")
    assert by_kind(planned("grpo_math_8b", *inside), "refit")["broadcast to engines"].link == "nvlink"


def test_one_gpu_has_nobody_to_talk_to(planned):
    assert planned("grpo_math_1b").collectives == ()
