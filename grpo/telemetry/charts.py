"""Which metrics a report draws together, and how."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    metric: str
    label: str
    color: str = "series-1"
    smooth: bool = False  # the raw values pale, their running mean strong
    marker: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture: lines over steps. `lower` is a second, small panel."""

    name: str
    title: str
    lines: Sequence[Line]
    unit: str = ""
    lower: Sequence[Line] = ()
    lower_unit: str = ""
    from_zero: bool = False
    note: str = ""


CHARTS = (
    Chart(
        "reward",
        "Reward and accuracy",
        (
            Line("train/reward", "reward", "series-1", smooth=True),
            Line("validation/accuracy", "validation accuracy", "series-2", marker=True),
        ),
    ),
    Chart(
        "lengths",
        "Completion length",
        (
            Line("rollout/generated_tokens_per_sample", "mean", "series-1"),
            Line("rollout/completion_length_p95", "95th percentile", "series-3", dashed=True),
            Line("rollout/completion_length_max", "longest", "series-2", dashed=True),
        ),
        unit="tokens",
        lower=(Line("rollout/truncated_fraction", "truncated share", "series-4"),),
        from_zero=True,
    ),
    Chart("kl", "KL to the reference policy", (Line("train/kl", "KL", smooth=True),), unit="nats a token"),
    Chart("entropy", "Entropy", (Line("train/approx_entropy", "entropy", smooth=True),), unit="nats a token"),
    Chart(
        "logprob_error",
        "Engine against trainer",
        (
            Line("train/token_mult_prob_error", "mean", "series-1"),
            Line("train/token_mult_prob_error_p99", "99th percentile", "series-3", dashed=True),
            Line("train/token_mult_prob_error_max", "worst sequence", "series-2", dashed=True),
        ),
        unit="exp |Δ log-prob|",
        note="1 is perfect agreement of the two log-probabilities.",
    ),
    Chart("grad_norm", "Gradient norm", (Line("train/grad_norm", "before clipping", smooth=True),), from_zero=True),
    Chart(
        "signal",
        "Learning signal",
        (
            Line("train/zero_std_fraction", "groups without signal", "series-1"),
            Line("train/clipped_fraction", "clipped tokens", "series-2"),
        ),
        unit="share",
        from_zero=True,
    ),
    Chart("loss", "Loss", (Line("train/loss", "loss", smooth=True),)),
    Chart("learning_rate", "Learning rate", (Line("train/learning_rate", "learning rate"),), from_zero=True),
    Chart(
        "throughput",
        "Throughput",
        (Line("performance/tokens_per_second_per_gpu", "tokens/s/GPU", smooth=True),),
        unit="tokens/s/GPU",
        lower=(Line("performance/mfu", "model FLOP utilisation", "series-3"),),
        from_zero=True,
    ),
    Chart(
        "memory",
        "Memory",
        (
            Line("memory/allocated_gib", "GPU, allocated", "series-1"),
            Line("memory/rss_gib", "host process", "series-3"),
        ),
        unit="GiB",
        from_zero=True,
    ),
)
