"""What a rank of the Megatron parity tests runs. Importing it imports Megatron-Core."""

import functools
import warnings
from unittest import mock

import torch
from torch import distributed as dist

from tests.support.policy import random_batch, tiny_config, tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from grpo.models.megatron.shape import ModelShape
    from grpo.workers.megatron import optimizer
    from grpo.workers.megatron.policy import MegatronPolicy

STEPS = 3
# With torch's 1e-8 a single gradient element that is nearly 0 moves by the learning rate in the direction of its
# rounding error: the change would say nothing of the rest.
ADAMW = {"lr": 1e-3, "eps": 1e-6}
LENGTHS, PROMPTS = (5, 9, 3, 12, 7, 2, 16, 4, 11), (2, 4, 1, 3, 5, 1, 6, 2, 9)


def batch():
    return random_batch(LENGTHS, PROMPTS, untrained=(2,))


def model(cell, seed=0):
    kind, tied = cell["model"]
    return tiny_model(kind, tied=tied, seed=seed)


def config(cell):
    megatron = {"enabled": True, **cell.get("megatron", {})}
    settings = {"optimizer": {"kwargs": ADAMW}, **cell.get("policy", {}), "megatron_cfg": megatron}
    return tiny_config(policy=settings, loss_fn=cell.get("loss_fn"))


def policy_of(cell):
    weights = dict(model(cell).state_dict())
    resolved = config(cell)
    needs = resolved.loss_fn.reference_policy_kl_penalty != 0
    shape = ModelShape.of(model(cell).config)
    # Megatron's own 40 million parameters a bucket would make one bucket of the model, and nothing would overlap.
    buckets = functools.partial(optimizer.DistributedDataParallelConfig, bucket_size=100)
    with mock.patch.object(optimizer, "DistributedDataParallelConfig", buckets):
        return MegatronPolicy(shape, weights, resolved, reference=weights if needs else None)


def given(cell):
    data = batch()
    if cell.get("rows") is not None:
        data = data.select(cell["rows"])
    return data.with_values(old_logprobs=None) if cell.get("loss_fn", {}).get("force_on_policy_ratio") else data


def replay(cell):
    """Log-probs, three updates, export. Tensors of rank 0 alone; the other ranks' only have to be equal."""
    warnings.simplefilter("ignore")
    policy, data = policy_of(cell), given(cell)
    before = policy.logprobs(data)
    metrics = [dict(policy.train(data).metrics) for _ in range(STEPS)]
    result = {"before": before, "metrics": metrics, "after": policy.logprobs(data)}
    if policy._reference is not None:
        result["reference"] = policy.reference_logprobs(data)
    result["weights"] = {name: each.clone() for name, each in policy.export_weights()}
    _assert_equal_on_all_ranks(result)
    return result if dist.get_rank() == 0 else None


def _assert_equal_on_all_ranks(result):
    flat = [result["before"], result["after"], *result["weights"].values()]
    sums = [each.double().sum().item() for each in flat]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (sums, result["metrics"]))
    for rank, theirs in enumerate(everyone):
        assert theirs == everyone[0], f"rank {rank} has other results than rank 0: {theirs} {everyone[0]}"


def refuse_nan(cell):
    """An update whose gradient is not finite on one data parallel rank: what is said, and that nothing changed."""
    warnings.simplefilter("ignore")
    policy, data = policy_of(cell), given(cell)
    policy.train(data)
    before = {name: each.clone() for name, each in policy.export_weights()}
    advantages = data.advantages.clone()
    advantages[1] = torch.nan
    try:
        policy.train(data.with_values(advantages=advantages))
    except FloatingPointError as error:
        message = str(error)
    after = {name: each.clone() for name, each in policy.export_weights()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    first = policy.train(data).metrics
    other = policy_of(cell)
    other.train(data)
    assert other.train(data).metrics == first
    return message
