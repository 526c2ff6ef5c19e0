"""Tokens a second and device, and the share of the datasheet's peak, against figures worked out by hand."""

import pytest
import torch

from grpo.batching.batch import Batch
from grpo.config import load_config
from grpo.models.dimensions import Dimensions
from grpo.rollout.source import Rollout
from grpo.trainer.throughput import Throughput
from tests.support.rollouts import trajectory

# 3 x 8 heads of 4 over 2 layers; products of a layer: q, o [10 x 32], k, v [10 x 8], three of [10 x 20].
MODEL = Dimensions(layers=2, hidden=10, intermediate=20, heads=8, kv_heads=2, head_dim=4, vocab=50)
LAYER = 10 * (2 * 32 + 2 * 8) + 3 * 10 * 20
TIMES = {"timing/total": 2.0, "timing/policy_training": 0.5}
ROLLOUT = Rollout([trajectory(0, 1.0)], generated_samples=4, generated_tokens=90, prompt_tokens=30)


def batch():
    """Prompts of 2 and 3; of the first sequence four tokens are trained, of the second two, of the third none."""
    mask = [0, 0, 1, 1, 1, 1, *(0, 0, 0, 1, 1), *(0, 0, 0, 0)]
    return Batch(
        torch.zeros(15, dtype=torch.int64), torch.tensor([6, 5, 4]), torch.tensor(mask).bool(), torch.zeros(15)
    )


def training_flops():
    """Three times the forward pass over 5 and 4 tokens (the last is not put in), of which 6 are predicted."""
    layers = 2 * (5 + 4) * 2 * LAYER
    attention = 2 * (25 + 16) * 32 * 2
    head = 2 * 6 * 10 * 50
    return 3 * (layers + attention + head)


def metrics(*overrides, recipe="tiny", names=("cpu",), given=None):
    config = load_config(recipe, overrides).config
    return Throughput.of(config, MODEL, names).metrics(ROLLOUT, batch() if given is None else given, TIMES)


def test_tokens_are_prompt_and_generated_ones_a_second_and_device():
    found = metrics("cluster.cpu_ranks=4", names=("cpu",) * 4)
    assert found["performance/tokens_per_second_per_gpu"] == 120 / 2.0 / 4
    assert found["performance/generated_tokens_per_second"] == 45


def test_utilisation_is_of_the_datasheet_of_all_gpus_and_the_seconds_of_training():
    found = metrics(recipe="grpo_math_8b", names=("NVIDIA H200",) * 8)
    assert found["performance/mfu"] == pytest.approx(training_flops() / (0.5 * 8 * 989.4e12), rel=1e-12)
    assert found["performance/training_tflops_per_gpu"] == pytest.approx(training_flops() / 0.5 / 8 / 1e12)


def test_a_given_peak_is_of_one_device_and_goes_before_the_datasheet():
    for recipe, name in (("tiny", "cpu"), ("grpo_math_1b", "NVIDIA H200")):
        found = metrics("cluster.peak_tflops=0.25", recipe=recipe, names=(name,))
        assert found["performance/mfu"] == pytest.approx(training_flops() / (0.5 * 0.25e12))
    of_two = metrics("cluster.peak_tflops=0.25", "cluster.cpu_ranks=2", names=("cpu",) * 2)
    assert of_two["performance/mfu"] == pytest.approx(training_flops() / (0.5 * 0.5e12))


def test_gpus_that_differ_have_the_sum_of_their_peaks():
    found = metrics("cluster.gpus_per_node=2", recipe="grpo_math_1b", names=("NVIDIA H200", "NVIDIA A100-SXM4-80GB"))
    assert found["performance/mfu"] == pytest.approx(training_flops() / (0.5 * (989.4e12 + 312e12)))


@pytest.mark.parametrize("names", [("cpu",), ("NVIDIA Next",)])
def test_without_a_known_peak_there_is_no_utilisation(names):
    found = metrics(names=names)
    assert "performance/mfu" not in found
    assert found["performance/training_tflops_per_gpu"] > 0


def test_a_step_without_trained_tokens_has_no_utilisation():
    nothing = batch().with_values(mask=torch.zeros(15, dtype=torch.bool))
    assert "performance/mfu" not in metrics("cluster.peak_tflops=1", given=nothing)


def test_a_separate_engine_has_no_part_in_training():
    overrides = ["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=4"]
    found = metrics(*overrides, recipe="grpo_math_8b", names=("NVIDIA H200",) * 4)
    assert found["performance/tokens_per_second_per_gpu"] == 120 / 2.0 / 8
    assert found["performance/mfu"] == pytest.approx(training_flops() / (0.5 * 4 * 989.4e12))
