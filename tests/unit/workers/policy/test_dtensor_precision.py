"""bfloat16 over float32 masters, and what exists at once."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.refit.local import LocalRefit
from grpo.telemetry.timers import PhaseTimer
from tests.support.dense_policy import gradients_of_train, make, relative_error
from tests.support.policy import VOCABULARY, random_batch, tiny_model, whole_state
from tests.support.rollouts import RecordingGenerator

WEIGHT = "model.layers.0.mlp.down_proj.weight"


def bfloat16_policy(lr):
    """All of `WEIGHT` is 0.02."""
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(0.02)
    settings = {"lr": lr, "weight_decay": 0.0}
    return make(model, policy={"precision": "bfloat16", "optimizer": {"kwargs": settings}})


def test_bfloat16_masters_keep_updates_that_bfloat16_would_swallow():
    policy = bfloat16_policy(1e-6)
    start = dict(whole_state(policy)[0])[f"model.{WEIGHT}"].clone()
    rounded = dict(policy.export_weights())[WEIGHT].clone()
    for _ in range(3):
        policy.train(random_batch())
    moved = whole_state(policy)[0][f"model.{WEIGHT}"] - start
    assert moved.abs().max() == pytest.approx(3e-6, rel=0.1)  # Adam's first steps are of the learning rate's size
    now = dict(policy.export_weights())[WEIGHT]
    assert now.dtype == torch.bfloat16
    assert torch.equal(now, rounded)  # 3e-6 is less than half of bfloat16's spacing there


def test_updates_that_bfloat16_would_swallow_one_by_one_add_up_and_reach_the_engine():
    """Fault c9: 0.02 and eight times 1e-5 is another bfloat16 number; 0.02 rounded after each addition is not."""
    policy = bfloat16_policy(1e-5)
    engine, timer = RecordingGenerator(), PhaseTimer()
    refit = LocalRefit(policy, engine)
    for _ in range(9):
        with timer.step():
            refit.ensure_current(timer)
        policy.train(random_batch())
    arrived = [weights[WEIGHT] for _, weights in engine.received]
    assert len(arrived) == 9
    assert torch.equal(arrived[3], arrived[0])
    assert (arrived[8] != arrived[0]).float().mean() > 0.25  # in the direction in which the next number is nearer


def test_bfloat16_compute_is_near_float32():
    batch = random_batch()
    wide, narrow = make(tiny_model()), make(tiny_model(), policy={"precision": "bfloat16"})
    assert narrow.logprobs(batch).dtype == torch.float32
    batch = batch.with_values(old_logprobs=wide.logprobs(batch))
    assert (narrow.logprobs(batch) - batch.old_logprobs).abs().mean() < 0.05
    one, first = gradients_of_train(wide, batch)
    other, second = gradients_of_train(narrow, batch)
    assert second["lm_head.weight"].dtype == torch.float32
    assert relative_error(second, {name: each.double() for name, each in first.items()}) < 0.05
    assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=0.02)


def test_bfloat16_forward_sees_the_updated_masters():
    policy = make(
        tiny_model(), policy={"precision": "bfloat16", "optimizer": {"kwargs": {"lr": 1e-2, "weight_decay": 0.0}}}
    )
    policy.train(random_batch())
    masters = whole_state(policy)[0]
    for name, exported in policy.export_weights():
        assert torch.equal(exported, masters[f"model.{name}"].bfloat16()), name


class WidestLogits(TorchDispatchMode):
    """The most rows that any float32 result as wide as the vocabulary had."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in [] if func.is_view else tree_leaves(result):  # a transposed weight is as wide
            if isinstance(each, torch.Tensor) and each.dtype == torch.float32 and each.shape[1:] == (VOCABULARY,):
                self.rows = max(self.rows, each.shape[0])
        return result


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_chunk_size_bounds_the_logits_of_both_passes(precision):
    batch = random_batch()
    for chunk_size, widest in ((None, 21), (4, 4)):
        policy = make(
            tiny_model(),
            policy={
                "logprob_chunk_size": chunk_size, "precision": precision,
                "train_micro_batch_size": 64, "logprob_batch_size": 64,
            },
            loss_fn={"entropy_coef": 0.1},
        )  # fmt: skip
        for phase in (policy.train, policy.logprobs):
            with WidestLogits() as seen:
                phase(batch)
            assert seen.rows == widest


@pytest.mark.parametrize(("enabled", "calls_expected"), [(True, 2), (False, 1)])
def test_activation_checkpointing_runs_each_layer_again(enabled, calls_expected):
    model, calls = tiny_model(), []
    policy = make(model, policy={"train_micro_batch_size": 64, "dtensor_cfg": {"activation_checkpointing": enabled}})
    model.model.layers[1].self_attn.register_forward_pre_hook(lambda *_: calls.append(1))
    policy.train(random_batch())
    assert len(calls) == calls_expected
