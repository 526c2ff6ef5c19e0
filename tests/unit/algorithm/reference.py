"""The objective again, from the formulas: one token at a time, float64, sharing nothing with the code under test."""

import math

import torch


def reference_objective(case, options, tokens, sequences):
    """Loss (scalar with gradient) and metrics over all sequences at once.

    `case`: per token `l` (scalars that require grad), `old`, `gen`, `ref`, `entropy`, `mask`, `ids`; `advantages`.
    """
    rows = {}
    for t, trained in enumerate(case["mask"]):
        if trained:
            rows.setdefault(case["ids"][t], []).append(t)
    old = [x.detach() for x in case["l"]] if options["force_on_policy_ratio"] else case["old"]
    loss = torch.zeros((), dtype=torch.float64)
    names = ("ratio", "clipped", "weight", "kl", "error", "gen_kl", "approx_entropy", "outside")
    seen = dict.fromkeys(names, 0.0)
    ratios, sequence_errors = [], []
    for sequence, members in rows.items():
        advantage = case["advantages"][sequence]
        weight = sequence_weights([number(old[t] - case["gen"][t]) for t in members], options)
        sequence_ratio = torch.exp(torch.stack([case["l"][t] - old[t] for t in members]).mean().clamp(-20, 20))
        errors = []
        for t, (w, outside) in zip(members, weight, strict=True):
            ratio = torch.exp((case["l"][t] - old[t]).clamp(-20, 20))
            if options["kind"] == "gspo":
                ratio = sequence_ratio
            term, clipped = policy_term(case["l"][t], ratio, advantage, options)
            kl, plain_kl = kl_term(case["l"][t], case["ref"][t], options)
            total = term
            if options["kl_in_loss"]:
                total = total + options["kl_penalty"] * kl
            if options["use_correction"]:
                total = w * total
            total = total - options["entropy_coef"] * case["entropy"][t]
            loss = loss + total * token_share(len(members), options, tokens, sequences)
            difference = number(old[t] - case["gen"][t])
            difference = difference if math.isfinite(difference) else 0.0
            lag = number(case["l"][t] - case["gen"][t])
            errors.append(math.exp(abs(difference)))
            seen["ratio"] += number(ratio)
            seen["clipped"] += clipped
            seen["weight"] += w
            seen["outside"] += outside
            seen["kl"] += plain_kl
            seen["error"] += errors[-1]
            seen["gen_kl"] += math.exp(difference) - 1 - difference
            seen["approx_entropy"] -= number(case["l"][t]) * (math.exp(lag) if math.isfinite(lag) else 1.0)
            ratios.append(number(ratio))
        sequence_errors.append(sum(errors) / len(errors))
    metrics = {
        "loss": number(loss),
        "probs_ratio": seen["ratio"] / tokens if tokens else 0.0,
        "clip_fraction": seen["clipped"] / tokens if tokens else 0.0,
        "sampling_importance_ratio": seen["weight"] / tokens if tokens else 0.0,
        "kl_penalty": seen["kl"] / tokens if tokens else 0.0,
        "token_mult_prob_error": seen["error"] / tokens if tokens else 0.0,
        "gen_kl_error": seen["gen_kl"] / tokens if tokens else 0.0,
        "approx_entropy": seen["approx_entropy"] / tokens if tokens else 0.0,
    }
    if options["correction_kind"] not in ("token", "sequence"):
        metrics["is_oob_ratio"] = seen["outside"] / tokens if tokens else 0.0
    if ratios:
        metrics |= {"probs_ratio_min": min(ratios), "probs_ratio_max": max(ratios)}
        metrics["token_mult_prob_error_max"] = max(sequence_errors)
    return loss, metrics


def number(value):
    return value.detach().item() if isinstance(value, torch.Tensor) else float(value)


def token_share(length, options, tokens, sequences):
    kind = "seq_mean_token_mean" if options["kind"] == "gspo" else options["aggregation"]
    return {
        "token_mean": 1 / tokens,
        "seq_mean_token_mean": 1 / (length * sequences),
        "seq_mean_token_sum": 1 / sequences,
        "seq_mean_token_sum_norm": 1 / (options["aggregation_norm_length"] * sequences),
    }[kind]


def policy_term(logprob, ratio, advantage, options):
    low, high = 1 - options["ratio_clip_min"], 1 + options["ratio_clip_max"]
    bounded = min(max(number(ratio), low), high)
    if options["kind"] == "cispo":
        return -bounded * advantage * logprob, bounded != number(ratio)
    choices = [(number(-advantage * ratio), -advantage * ratio, False), (-advantage * bounded, None, True)]
    value, term, clipped = max(choices, key=lambda choice: choice[0])  # the first of equals
    ceiling = options["ratio_clip_c"]
    if ceiling is not None and advantage < 0 and value > -advantage * ceiling:
        value, term, clipped = -advantage * ceiling, None, True
    return (term if term is not None else torch.tensor(value, dtype=torch.float64)), clipped


def sequence_weights(differences, options):
    """(weight, outside its bounds) of each trained token of one sequence."""
    kind, cap = options["correction_kind"], options["correction_cap"]
    low, high = options["correction_min"], options["correction_max"]
    total = sum(differences)
    result = []
    for difference in differences:
        if not math.isfinite(difference):
            outside = False
            weight = 0.0
        elif kind == "sequence":
            weight, outside = (math.exp(total) if math.isfinite(total) else 0.0), False
        else:
            weight = math.exp(difference)
            outside = False
            if kind in ("tis", "mis"):
                outside = weight > cap
                weight = weight if not outside else {"tis": cap, "mis": 0.0}[kind]
            elif kind == "icepop":
                outside = not low <= weight <= high
            elif kind == "seq-mask-tis":
                mean = total / len(differences)
                outside = not (math.isfinite(mean) and low <= math.exp(mean) <= high)
            if outside and kind in ("icepop", "seq-mask-tis"):
                weight = 0.0
        result.append((weight, outside))
    return result


def kl_term(logprob, reference, options):
    log_x = reference - logprob
    if options["kl_input_clamp"] is not None:
        log_x = log_x.clamp(-options["kl_input_clamp"], options["kl_input_clamp"])
    estimate = {"k1": -log_x, "k2": log_x**2 / 2, "k3": torch.exp(log_x) - 1 - log_x}[options["kl_kind"]]
    if options["kl_output_clamp"] is not None:
        estimate = estimate.clamp(-options["kl_output_clamp"], options["kl_output_clamp"])
    if options["kl_on_policy_gradient"]:
        return estimate * torch.exp(logprob - logprob.detach()), number(estimate)
    return estimate, number(estimate)
