"""The objective in float64, sequence by sequence, written from the formulas: it imports nothing of grpo.algorithm.

Clipped surrogate with dual clip (arXiv 1912.09729), GSPO (2507.18071), CISPO (2506.13585), k3 KL with the gradient of
the expectation (2506.09477), exact entropy, truncated importance weights, and global denominators.
"""

import torch


def token_values(model, tokens, temperature):
    """Log-probs [L - 1] of tokens 1..L-1 and the entropies of their distributions, in the model's dtype."""
    log_p = (model(input_ids=tokens[None]).logits[0, :-1] / temperature).log_softmax(-1)
    return log_p.gather(1, tokens[1:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def policy_terms(kind, now, old, advantage, low, high, dual):
    """Loss and ratio of each token of one sequence."""
    if kind == "gspo":
        ratio = (now - old).mean().exp().expand(len(now))
    else:
        ratio = (now - old).exp()
    bounded = ratio.clamp(1 - low, 1 + high)
    if kind == "cispo":
        return -bounded.detach() * advantage * now, ratio, bounded != ratio
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    clipped = -advantage * bounded > -advantage * ratio
    if dual is not None and advantage < 0:
        clipped = clipped | (loss > -advantage * dual)
        loss = loss.clamp(max=-advantage * dual)
    return loss, ratio, clipped


def objective64(
    model, batch, *, kind="clipped", low=0.2, high=0.2, dual=None, aggregation="token_mean", entropy=0.0, kl=0.0,
    tis_cap=None, on_policy=False, temperature=1.0,
):  # fmt: skip
    """The loss, with its graph, and metrics by the trainer's names."""
    sequences, start = [], 0
    for length, advantage in zip(batch.lengths.tolist(), batch.advantages.double().tolist(), strict=True):
        rows = slice(start, start + length)
        start += length
        mask = batch.mask[rows][1:]
        if not mask.any():
            continue
        now, entropies = token_values(model, batch.tokens[rows], temperature)
        now, entropies = now[mask], entropies[mask]
        generated = batch.generation_logprobs[rows][1:][mask].double()
        old = now.detach() if on_policy else batch.old_logprobs[rows][1:][mask].double()
        losses, ratio, clipped = policy_terms(kind, now, old, advantage, low, high, dual)
        weight = (old - generated).exp()
        weight = weight if tis_cap is None else weight.clamp(max=tis_cap)
        applied = weight if tis_cap is not None else torch.ones_like(weight)
        values = {"policy_loss": applied * losses, "entropy": entropies, "ratio": ratio, "clipped": clipped.double()}
        values["kl"] = torch.zeros_like(now)
        if kl:
            log_x = batch.reference_logprobs[rows][1:][mask].double() - now
            k3 = (log_x.exp() - 1 - log_x).clamp(max=10)
            values["kl"] = k3.detach()
            values["kl_loss"] = applied * kl * k3 * (now - now.detach()).exp()
        values["error"] = (generated - old).abs().exp()

        values["weight"], values["difference"] = weight, (old - generated).abs()
        sequences.append(values)

    def aggregate(name):
        parts = [each[name] for each in sequences]
        if aggregation == "token_mean" and kind != "gspo":
            return torch.cat(parts).mean()
        reduced = [each.sum() if aggregation == "seq_mean_token_sum" and kind != "gspo" else each.mean() for each in parts]
        return torch.stack(reduced).mean()

    parts = {"policy_loss": aggregate("policy_loss")}
    if kl:
        parts["kl_loss"] = aggregate("kl_loss")
    if entropy:
        parts["entropy_loss"] = -entropy * aggregate("entropy")
    loss = sum(parts.values())

    def mean(name):
        return torch.cat([each[name] for each in sequences]).mean().item()

    metrics = {name: value.item() for name, value in parts.items()}
    metrics |= {
        "loss": loss.item(),
        "probs_ratio": mean("ratio"), "probs_ratio_max": max(each["ratio"].max().item() for each in sequences),
        "probs_ratio_min": min(each["ratio"].min().item() for each in sequences), "clip_fraction": mean("clipped"),
        "token_mult_prob_error": mean("error"), "logprob_difference": mean("difference"),
        "token_mult_prob_error_max": max(each["error"].mean().item() for each in sequences),
        "sampling_importance_ratio": mean("weight"), "trained_sequences": float(len(sequences)),
        "trained_tokens": float(sum(len(each["ratio"]) for each in sequences)),
    }  # fmt: skip
    if entropy:
        metrics["entropy"] = mean("entropy")
    if kl:
        metrics["kl_penalty"] = mean("kl")
    return loss, metrics


def train64(model, batch, *, steps, lr, max_norm, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, **loss):
    """`steps` updates of a float64 model in place, by torch's AdamW. Metrics of each step, the gradient norm among them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        value, metrics = objective64(model, batch, **loss)
        value.backward()
        norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
        if norm > max_norm:
            for each in model.parameters():
                each.grad.mul_(max_norm / (norm + 1e-6))
        optimizer.step()
        history.append({**metrics, "grad_norm": norm.item()})
    return history
