"""A policy worker in one process, and its loss written out over dense logits."""

import torch

from grpo.workers.policy.dtensor import DTensorPolicy
from tests.support.policy import tiny_config


def make(model, *, policy=None, loss_fn=None, reference=None):
    return DTensorPolicy(model, tiny_config(policy=policy, loss_fn=loss_fn), reference=reference)


def gradients_of_train(policy, batch):
    """What `train` returns, and the gradients that its optimizer step was given."""
    seen = {}
    step = policy._optimizer.step

    def recording(learning_rate):
        seen.update({name: each.grad.clone() for name, each in policy._masters.named_parameters()})
        step(learning_rate)

    policy._optimizer.step = recording
    result = policy.train(batch)
    policy._optimizer.step = step
    return result, seen


def dense_loss(model, batch, *, aggregation="token_mean", entropy_coef=0.0, kl=0.0):
    """Clipped loss (0.2, 0.2), k3 KL with its on-policy factor, entropy bonus: written out, in the model's dtype."""
    logits = []
    for tokens in batch.tokens.split(batch.lengths.tolist()):
        output = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
        logits.append(torch.cat([output[:1], output[:-1]]))  # row t predicts token t; the first row is never read
    log_p = torch.cat(logits)
    current = log_p.gather(1, batch.tokens[:, None])[:, 0]
    mask = batch.mask
    old, reference = (each.double().where(mask, 0.0) for each in (batch.old_logprobs, batch.reference_logprobs))
    ratio = (current - old).exp()
    advantage = batch.advantages.double()[batch.sequence_ids]
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    difference = reference - current
    k3 = (difference.exp() - 1 - difference).clamp(max=10.0)
    loss = loss + kl * k3 * (current - current.detach()).exp()
    loss = loss + entropy_coef * (log_p.exp() * log_p).sum(-1)
    rows = [each[kept] for each, kept in zip(
        loss.split(batch.lengths.tolist()), mask.split(batch.lengths.tolist()), strict=True
    )]  # fmt: skip
    rows = [each for each in rows if len(each)]
    if aggregation == "token_mean":
        return torch.cat(rows).mean()
    reduce = torch.mean if aggregation == "seq_mean_token_mean" else torch.sum
    return torch.stack([reduce(each) for each in rows]).mean()


def relative_error(ours, theirs):
    difference = sum((ours[name].double() - theirs[name]).square().sum() for name in theirs)
    return float((difference / sum(each.square().sum() for each in theirs.values())).sqrt())
