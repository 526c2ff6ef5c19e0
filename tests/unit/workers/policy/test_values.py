import pytest
import torch

from grpo.algorithm.objective import Denominators, ObjectiveOptions, objective
from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.forward import model_inputs, needed_lengths
from grpo.workers.policy.token_logprobs import TokenLogprobs
from grpo.workers.policy.values import token_values
from tests.support.policy import random_batch


def values_of(rows, *, batch=None):
    batch = random_batch() if batch is None else batch
    needed = needed_lengths(batch)
    micro = MicroBatch(rows, 12, 12 * len(rows)) if rows else MicroBatch([], 2, 2)
    inputs = model_inputs(batch, micro, needed, torch.device("cpu"))
    current = torch.linspace(-3, -1, len(inputs.targets)).requires_grad_()
    return token_values(batch, micro.rows, inputs, TokenLogprobs(current, torch.ones_like(current))), inputs, batch


def test_values_are_those_of_the_trained_tokens():
    values, inputs, batch = values_of([3, 1])
    assert values.mask.all()
    assert values.num_sequences == 2
    assert torch.equal(values.advantages, batch.advantages[[3, 1]])
    for name in ("generation_logprobs", "old_logprobs", "reference_logprobs"):
        assert torch.equal(getattr(values, name), getattr(batch, name)[inputs.trained])
    assert torch.equal(values.sequence_ids, inputs.sequence_ids)


def test_what_the_batch_lacks_stays_none():
    values, *_ = values_of([0], batch=random_batch().with_values(old_logprobs=None, reference_logprobs=None))
    assert values.old_logprobs is None
    assert values.reference_logprobs is None
    with pytest.raises(AssertionError, match="advantages"):
        values_of([0], batch=random_batch().with_values(advantages=None))


@pytest.mark.parametrize("kind", ["clipped", "gspo", "cispo"])
def test_a_dummy_has_the_same_metrics_and_weighs_nothing(kind):
    options = ObjectiveOptions(kind=kind, entropy_coef=0.1, use_correction=True)
    denominators = Denominators(7.0, 2.0)
    real, _, _ = values_of([3, 1])
    dummy, _, _ = values_of([])
    first, second = (objective(each, options, denominators) for each in (real, dummy))
    assert second.loss.item() == 0.0
    assert torch.equal(torch.autograd.grad(second.loss, dummy.logprobs)[0], torch.zeros(1))
    for part in ("sums", "maxima", "minima", "sequence_values"):
        assert getattr(first.metrics, part).keys() == getattr(second.metrics, part).keys()
    merged = first.metrics.merge(second.metrics).finalise(denominators)
    assert merged == first.metrics.finalise(denominators)
