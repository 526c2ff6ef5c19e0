"""That the bare loop does what the worker does: else their times could not be compared."""

import pytest
import torch

from benchmarks.gpu.bare import BareLoop
from benchmarks.gpu.settings import worker_config
from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.work import batch_of, packs_of
from grpo.workers.policy.dtensor import DTensorPolicy

TINY, CAP = SHAPES_BY_NAME["tiny"], 64


def gradients_of(policy, batch):
    """Of the masters, as the worker's optimizer is given them."""
    seen = []
    step = policy._optimizer.step

    def recording(learning_rate):
        seen.extend(each.grad.clone() for each in policy._masters.parameters())
        step(learning_rate)

    policy._optimizer.step = recording
    return policy.train(batch), seen


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_gradients_and_weights_after_an_update_are_those_of_the_worker(precision, checkpointing):
    batch = batch_of([30, 9, 17, 41, 22], 320, seed=3)
    config = worker_config(CAP, precision=precision, checkpointing=checkpointing, gpus=0)
    ours = DTensorPolicy(TINY.build("cpu"), config)
    bare = BareLoop(TINY.build("cpu"), getattr(torch, precision), checkpointing=checkpointing)
    packs = packs_of(batch, CAP, "cpu")
    assert len(packs) > 1
    loss = bare.backward(packs)
    result, mine = gradients_of(ours, batch)
    norm = sum(each.grad.double().square().sum().item() for each in bare.masters) ** 0.5
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    theirs = [each.grad * min(1.0, 1.0 / (norm + 1e-6)) for each in bare.masters]
    assert result.metrics["loss"] == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    assert all(torch.allclose(one, other, rtol=2e-6, atol=1e-9) for one, other in zip(mine, theirs, strict=True))
    again = BareLoop(TINY.build("cpu"), getattr(torch, precision), checkpointing=checkpointing)
    again.update(packs)
    for one, other in zip(ours._masters.parameters(), again.masters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_second_update_sees_the_rounded_weights_of_the_first():
    batch = batch_of([30, 9, 17], 320, seed=3)
    bare = BareLoop(TINY.build("cpu"), torch.bfloat16)
    packs = packs_of(batch, CAP, "cpu")
    bare.update(packs)
    for rounded, master in zip(bare.model.parameters(), bare.masters, strict=True):
        assert torch.equal(rounded, master.to(torch.bfloat16))
        assert master.grad is None
        assert rounded.grad is None


def test_log_probs_are_those_of_the_worker():
    batch = batch_of([30, 9, 17], 320, seed=3)
    ours = DTensorPolicy(TINY.build("cpu"), worker_config(CAP, precision="float32", gpus=0))
    bare = BareLoop(TINY.build("cpu"), torch.float32)
    with torch.no_grad():
        theirs = torch.cat([bare.logprobs(each) for each in packs_of(batch, CAP, "cpu")])
    mine = ours.logprobs(batch)[batch.mask]
    torch.testing.assert_close(mine.sort().values, theirs.sort().values, rtol=1e-5, atol=1e-6)
