"""Numbers and phases as verdicts say them."""

from collections.abc import Sequence

from grpo.matrix.judge.verdict import Comparison, Share

_PHASES = {"policy_training": "policy training", "logprobs": "log-probs"}


def number(value: float) -> str:
    """Up to four significant digits: whole seconds stay whole."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.4g}"


def signed(value: float) -> str:
    text = number(value) if abs(value) >= 100 else f"{value:.3g}"
    return text if text.startswith("-") else f"+{text}"


def per_cent(fraction: float) -> str:
    """Signed; a whole number from one per cent on."""
    text = f"{100 * fraction:+.0f}" if abs(fraction) >= 0.01 else f"{100 * fraction:+.2g}"
    return f"{text} %"


def phase_words(phase: str) -> str:
    return _PHASES.get(phase, phase)


def metric_words(metric: str) -> str:
    """`timing/policy_training` -> "policy training"; other metrics keep their names."""
    return phase_words(metric.removeprefix("timing/")) if metric.startswith("timing/") else metric


def status_words(comparison: Comparison) -> str:
    """What a status means for this metric, and whether it counts."""
    word = {"within": "within", "informs": "for information"}.get(comparison.status)
    if word is None:
        memory = comparison.metric.startswith("memory/")
        worse = comparison.status == "worse"
        word = ("more" if worse else "less") if memory else ("slower" if worse else "faster")
    return word if comparison.gates or comparison.status == "informs" else f"{word} (reports only)"


def attribution_words(shares: Sequence[Share]) -> str:
    """`refit +12 s, other +11 s (3 -> 14), ...`: every phase, largest first."""
    return ", ".join(_share_words(share) for share in shares)


def _share_words(share: Share) -> str:
    text = f"{phase_words(share.phase)} {signed(share.seconds)} s"
    if share.phase == "other":
        text += f" ({number(share.reference)} -> {number(share.value)})"
    return text


def parts_words(share: Share) -> str:
    """`rewards 3, no phase 1; slowest: rank 5 on node3, 12 s`: what the run says of a phase's seconds."""
    texts = (
        [", ".join(f"{phase_words(name)} {number(seconds)}" for name, seconds in share.parts)] if share.parts else []
    )
    if share.slowest is not None:
        one = share.slowest
        texts.append(f"slowest: rank {one.rank} on {one.host}, {number(one.seconds)} s (median {number(one.median)} s)")
    return "; ".join(texts)


def total_words(total: Comparison) -> str:
    """`178 s against 147 s (+31 s, +21 %)`."""
    return (
        f"{number(total.value)} {total.unit} against {number(total.reference)} {total.unit} "
        f"({signed(total.difference)} {total.unit}, {per_cent(total.relative)})"
    )
