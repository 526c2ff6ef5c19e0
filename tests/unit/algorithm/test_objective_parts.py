"""The loss of each micro-batch, and the metrics of all of them together, are those of `objective`."""

from dataclasses import replace

import pytest
import torch

from grpo.algorithm.metrics import MetricSums
from grpo.algorithm.objective import (
    ObjectiveOptions,
    TokenValues,
    joined,
    objective,
    objective_loss,
    objective_metrics,
)
from tests.unit.algorithm.cases import denominators_of


def micro_batch(seed, sizes, *, trained=True, old=True):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

    def values():
        return torch.randn(len(ids), generator=generator).double() - 2

    return TokenValues(
        logprobs=values().requires_grad_(), mask=(torch.rand(len(ids), generator=generator) < 0.7) & trained,
        sequence_ids=ids, num_sequences=len(sizes), advantages=torch.randn(len(sizes), generator=generator).double(),
        generation_logprobs=values(), old_logprobs=values() if old else None, reference_logprobs=values(),
        entropy=values().requires_grad_(),
    )  # fmt: skip


PARTS = ((3, 1, 4), (5,), (2, 2))


def parts(*, old=True):
    return [micro_batch(seed, sizes, trained=seed != 1, old=old) for seed, sizes in enumerate(PARTS)]


@pytest.mark.parametrize("kind", ["clipped", "gspo", "cispo"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"force_on_policy_ratio": True, "aggregation": "seq_mean_token_mean", "entropy_coef": 0.3},
        {"kl_penalty": 0.0, "use_correction": True, "correction_kind": "tis"},
        {"kl_in_loss": False, "correction_kind": "seq-mask-tis", "correction_min": 0.5, "correction_max": 2.0},
    ],
)
def test_loss_and_metrics_apart_are_those_together(kind, settings):
    options = ObjectiveOptions(kind=kind, **settings)
    micro_batches = parts(old=not options.force_on_policy_ratio)
    denominators = denominators_of(joined([each.detached() for each in micro_batches]))
    sums = MetricSums()
    for each in micro_batches:
        whole, loss = objective(each, options, denominators), objective_loss(each, options, denominators)
        assert torch.equal(whole.loss, loss)
        inputs = [each.logprobs, each.entropy] if options.entropy_coef else [each.logprobs]
        for one, other in zip(torch.autograd.grad(whole.loss, inputs), torch.autograd.grad(loss, inputs), strict=True):
            assert torch.equal(one, other)
        sums = sums.merge(whole.metrics)
    together = objective_metrics([each.detached() for each in micro_batches], options, denominators)
    assert together.finalise(denominators) == pytest.approx(sums.finalise(denominators), rel=1e-12, abs=1e-15)
    for name, values in sums.sequence_values.items():
        torch.testing.assert_close(together.sequence_values[name], values, rtol=1e-12, atol=0, equal_nan=True)


def test_the_loss_alone_makes_nothing_that_it_does_not_need():
    values = replace(micro_batch(0, (2, 3)), generation_logprobs=None)
    options = ObjectiveOptions(kl_penalty=0.0)
    assert objective_loss(values, options, denominators_of(values)).isfinite()


def test_detached_values_hold_no_graph():
    values = micro_batch(0, (2, 3))
    grown = replace(values, logprobs=values.logprobs * 2, entropy=values.entropy * 2).detached()
    assert grown.logprobs.grad_fn is None
    assert grown.entropy.grad_fn is None
    assert torch.equal(grown.logprobs, 2 * values.logprobs)
    assert replace(values, entropy=None).detached().entropy is None
