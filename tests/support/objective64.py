"""The objective in float64, sequence by sequence, written from the formulas: it imports nothing of grpo.algorithm.

Clipped surrogate with dual clip (arXiv 1912.09729), GSPO (2507.18071), CISPO (2506.13585), k3 KL with the gradient of
the expectation (2506.09477), exact entropy, truncated importance weights, and global denominators.
"""

import torch


def token_values(model, tokens, temperature):
    """Log-probs [L - 1] of tokens 1..L-1 and the entropies of their distributions, in the model's dtype."""
    log_p = (model(input_ids=tokens[None]).logits[0, :-1] / temperature).log_softmax(-1)
    return log_p.gather(1, tokens[1:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def policy_terms(kind, now, old, advantage, *, low, high, dual):
    """Loss and ratio of each token of one sequence, and whether a bound decides."""
    difference = now - old
    ratio = (difference.mean().expand(len(now)) if kind == "gspo" else difference).exp()
    bounded = ratio.clamp(1 - low, 1 + high)
    if kind == "cispo":
        return -bounded.detach() * advantage * now, ratio, bounded != ratio
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    clipped = -advantage * bounded > -advantage * ratio
    if dual is not None and advantage < 0:
        clipped = clipped | (loss > -advantage * dual)
        loss = loss.clamp(max=-advantage * dual)
    return loss, ratio, clipped


def sequence_values(model, batch, rows, advantage, *, kl, tis_cap, on_policy, temperature, **policy):
    """Per trained token of one sequence: the terms of the loss, and what is reported."""
    mask = batch.mask[rows][1:]
    now, entropies = (each[mask] for each in token_values(model, batch.tokens[rows], temperature))
    generated = batch.generation_logprobs[rows][1:][mask].double()
    old = now.detach() if on_policy else batch.old_logprobs[rows][1:][mask].double()
    losses, ratio, clipped = policy_terms(now=now, old=old, advantage=advantage, **policy)
    weight = (old - generated).exp() if tis_cap is None else (old - generated).exp().clamp(max=tis_cap)
    applied = 1.0 if tis_cap is None else weight
    values = {
        "policy_loss": applied * losses, "entropy": entropies, "probs_ratio": ratio, "clip_fraction": clipped.double(),
        "token_mult_prob_error": (generated - old).abs().exp(), "logprob_difference": (old - generated).abs(),
        "sampling_importance_ratio": weight,
    }  # fmt: skip
    if kl:
        log_x = batch.reference_logprobs[rows][1:][mask].double() - now
        k3 = (log_x.exp() - 1 - log_x).clamp(max=10)
        values["kl_penalty"] = k3.detach()
        values["kl_loss"] = applied * kl * k3 * (now - now.detach()).exp()
    return values


def aggregated(parts, aggregation):
    """The parts are of one sequence each."""
    if aggregation == "token_mean":
        return torch.cat(parts).mean()
    return torch.stack([each.sum() if aggregation == "seq_mean_token_sum" else each.mean() for each in parts]).mean()


def objective64(
    model, batch, *, kind="clipped", low=0.2, high=0.2, dual=None, aggregation="token_mean", entropy=0.0, kl=0.0,
    tis_cap=None, on_policy=False, temperature=1.0,
):  # fmt: skip
    """The loss, with its graph, and metrics by the trainer's names."""
    aggregation = "seq_mean_token_mean" if kind == "gspo" else aggregation
    policy = {"kind": kind, "low": low, "high": high, "dual": dual, "kl": kl, "tis_cap": tis_cap}
    sequences, start = [], 0
    for length, advantage in zip(batch.lengths.tolist(), batch.advantages.double().tolist(), strict=True):
        rows = slice(start, start + length)
        start += length
        if batch.mask[rows].any():
            sequences.append(
                sequence_values(model, batch, rows, advantage, on_policy=on_policy, temperature=temperature, **policy)
            )
    of = {name: [each[name] for each in sequences] for name in sequences[0]}
    parts = {name: aggregated(of.pop(name), aggregation) for name in ("policy_loss", "kl_loss") if name in of}
    if entropy:
        parts["entropy_loss"] = -entropy * aggregated(of["entropy"], aggregation)
    else:
        del of["entropy"]
    loss = sum(parts.values())
    metrics = {name: value.item() for name, value in {**parts, "loss": loss}.items()}
    metrics |= {name: torch.cat(values).mean().item() for name, values in of.items()}
    ratios = torch.cat(of["probs_ratio"])
    return loss, {
        **metrics, "probs_ratio_max": ratios.max().item(), "probs_ratio_min": ratios.min().item(),
        "token_mult_prob_error_max": max(each.mean().item() for each in of["token_mult_prob_error"]),
        "trained_tokens": float(len(ratios)), "trained_sequences": float(len(sequences)),
    }  # fmt: skip


def train64(model, batch, *, steps, lr, max_norm, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, **loss):
    """`steps` updates of a float64 model in place, by torch's AdamW. Metrics of each step, with the norm."""
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
