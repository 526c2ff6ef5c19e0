"""What a rank of the Megatron-Core backend is made of in the parity matrix. Importing it imports Megatron-Core."""

import functools
import warnings
from unittest import mock

import torch

from tests.support.live_memory import LiveMemory
from tests.support.parity import batch_of, config_of, model_of
from tests.support.policy import VOCABULARY, random_batch, tiny_model
from tests.support.widest import Widest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from grpo.models.megatron.shape import ModelShape
    from grpo.workers.megatron import optimizer
    from grpo.workers.megatron.policy import MegatronPolicy


def megatron_policy(cell):
    model, config = model_of(cell), config_of(cell)
    weights = dict(model.state_dict())
    needs = config.loss_fn.reference_policy_kl_penalty != 0
    # Megatron's own 40 million parameters a bucket would make one bucket of the model, and nothing would overlap.
    buckets = functools.partial(optimizer.DistributedDataParallelConfig, bucket_size=100)
    with mock.patch.object(optimizer, "DistributedDataParallelConfig", buckets):
        return MegatronPolicy(ModelShape.of(model.config), weights, config, reference=weights if needs else None)


def refuse_nan(cell):
    """An update whose gradient is not finite on one data parallel rank: what is said, and that nothing changed."""
    warnings.simplefilter("ignore")
    policy, data = megatron_policy(cell), batch_of(cell)
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
    other = megatron_policy(cell)
    other.train(data)
    assert other.train(data).metrics == first
    return message


def widest_logits(cell):
    """Shapes of all float32 logits that a whole update and a log-prob pass make on this rank."""
    warnings.simplefilter("ignore")
    policy, data = megatron_policy(cell), batch_of(cell)
    with Widest({VOCABULARY, *range(VOCABULARY // 2, VOCABULARY // 2 + 2)}) as seen:
        policy.train(data)
        policy.logprobs(data)
    return sorted(seen.shapes)


def reductions(cell):
    """Of gradients in bfloat16 compute with one micro-batch a rank: dtypes of the weights that pass and of the sums,
    the share of this rank's part that is not 0, and the share of that which bfloat16 could not hold.
    """
    warnings.simplefilter("ignore")
    model, config = model_of(cell), config_of(cell)
    config = config.model_copy(update={
        "policy": config.policy.model_copy(update={"precision": "bfloat16"}),
        "loss_fn": config.loss_fn.model_copy(update={"force_on_policy_ratio": True}),  # nothing is clipped
    })  # fmt: skip
    policy = MegatronPolicy(ModelShape.of(model.config), dict(model.state_dict()), config)
    stage, found = policy._trained, []

    def noted(_learning_rate):
        found.extend(each.main_grad.flatten()[part].clone() for _, each, _, part in stage.masters())

    stage.step = noted
    data = random_batch((7, 7), (2, 2)).with_values(old_logprobs=None)
    policy.train(data)
    gradient = torch.cat(found)
    used = gradient != 0
    finer = (gradient != gradient.bfloat16())[used].double().mean().item()
    return {each.dtype for each in stage.model.parameters()}, gradient.dtype, used.double().mean().item(), finer


def export(cell):
    """Names and values of the weights in the order of a refit, and the most memory that making them took."""
    warnings.simplefilter("ignore")
    model = export_model(tied=cell["tied"])
    policy = MegatronPolicy(ModelShape.of(model.config), dict(model.state_dict()), config_of(cell))
    sent = [(name, each.numpy().copy()) for name, each in policy.export_weights()]
    with LiveMemory() as made:
        for _ in policy.export_weights():
            pass
    return sent, made.peak


def export_model(*, tied):
    return tiny_model(tied=tied, seed=3, num_hidden_layers=6)


def run(check):
    """Cells are (name of a function here, a cell of the parity matrix)."""
    name, cell = check
    return globals()[name](cell)
