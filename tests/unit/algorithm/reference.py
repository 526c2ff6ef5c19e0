"""The objective again, from the formulas: one token at a time, float64, sharing nothing with the code under test."""

import math
from collections import Counter

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
    seen, ratios, sequence_errors, sequence_distances = Counter(), [], [], []
    for sequence, members in rows.items():
        advantage = case["advantages"][sequence]
        differences = [number(old[t] - case["gen"][t]) for t in members]
        seen["dropped"] += dropped(differences, options)
        sequence_ratio = torch.exp(torch.stack([case["l"][t] - old[t] for t in members]).mean().clamp(-20, 20))
        share = token_share(len(members), options, tokens, sequences)
        errors, distances = [], []
        for t, difference, (w, outside) in zip(
            members, differences, sequence_weights(differences, options), strict=True
        ):
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
            loss = loss + total * share
            corrected = share * (w if options["use_correction"] else 1.0)
            seen["policy_loss"] += number(term) * corrected
            seen["kl_loss"] += options["kl_penalty"] * number(kl) * corrected
            seen["entropy_loss"] -= options["entropy_coef"] * number(case["entropy"][t]) * share
            seen.update({"clip_fraction": clipped, "sampling_importance_ratio": w, "is_oob_ratio": outside})
            seen.update({"kl_penalty": plain_kl, "nonfinite": w == 0.0 and not outside})
            ratios.append(number(ratio))
            errors.append(diagnose(case, t, difference, seen))
            distances.append(abs(difference) if math.isfinite(difference) else 0.0)
        sequence_errors.append(sum(errors) / len(errors))
        sequence_distances.append(sum(distances) / len(distances))
    of_sequences = {"token_mult_prob_error": sequence_errors, "logprob_difference": sequence_distances}
    metrics = metrics_of(seen, options, tokens, sequences, ratios=ratios, of_sequences=of_sequences)
    return loss, {"loss": number(loss), **metrics}


def diagnose(case, t, difference, seen):
    """exp(|l_gen - l_old|) of a token."""
    lag = number(case["l"][t] - case["gen"][t])
    difference = difference if math.isfinite(difference) else 0.0
    error = math.exp(abs(difference))
    seen.update({
        "token_mult_prob_error": error, "gen_kl_error": math.exp(difference) - 1 - difference,
        "logprob_difference": abs(difference), "entropy": number(case["entropy"][t]),
        "approx_entropy": -number(case["l"][t]) * (math.exp(lag) if math.isfinite(lag) else 1.0),
    })  # fmt: skip
    return error


def metrics_of(seen, options, tokens, sequences, *, ratios, of_sequences):
    means = [
        "clip_fraction", "sampling_importance_ratio", "kl_penalty", "token_mult_prob_error", "gen_kl_error",
        "approx_entropy", "entropy", "logprob_difference",
    ]  # fmt: skip
    if options["correction_kind"] not in ("token", "sequence"):
        means.append("is_oob_ratio")
    metrics = {name: seen[name] / tokens if tokens else 0.0 for name in means}
    metrics |= {
        "probs_ratio": sum(ratios) / tokens if tokens else 0.0, "nonfinite_importance_weights": seen["nonfinite"],
        "trained_tokens": tokens, "trained_sequences": sequences, "policy_loss": seen["policy_loss"],
    }  # fmt: skip
    if options["kl_in_loss"] and options["kl_penalty"]:
        metrics["kl_loss"] = seen["kl_loss"]
    if options["entropy_coef"]:
        metrics["entropy_loss"] = seen["entropy_loss"]
    if options["correction_kind"] == "seq-mask-tis":
        metrics["is_oob_sequence_ratio"] = seen["dropped"] / sequences if sequences else 0.0
    if ratios:
        metrics |= {"probs_ratio_min": min(ratios), "probs_ratio_max": max(ratios)}
        for name, values in of_sequences.items():
            metrics |= {f"{name}_max": max(values), f"{name}_p99": percentile(values, 0.99)}
    return metrics


def percentile(values, level):
    """Between neighbours linearly."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


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


def dropped(differences, options):
    """Whether seq-mask-tis leaves the sequence out."""
    if options["correction_kind"] != "seq-mask-tis":
        return False
    mean = sum(differences) / len(differences)
    return not (math.isfinite(mean) and options["correction_min"] <= math.exp(mean) <= options["correction_max"])


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
