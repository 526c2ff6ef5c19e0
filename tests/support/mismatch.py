"""The matrix's bounds on how far trainer's and engine's log-probs may lie apart, mean, p99 and maximum of sequences."""

from pathlib import Path

from grpo.matrix.judge.bounds import check_bounds
from grpo.matrix.load import load_matrix

_MATRIX = load_matrix(Path(__file__).parents[2] / "matrices")
_CASES = {"float32": "tiny-vllm", "bfloat16": "1b-dtensor-1gpu"}
_METRICS = ("train/logprob_difference", "train/token_mult_prob_error")


def broken_bounds(steps, precision="float32") -> list[str]:
    """The metrics of steps that the matrix's case of this precision would fail for; each has to be there."""
    every = _MATRIX.cases[_CASES[precision]].checks.bounds
    bounds = {name: bound for name, bound in every.items() if name.startswith(_METRICS)}
    assert {"train/logprob_difference", *(f"{name}{end}" for name in _METRICS for end in ("_p99", "_max"))} <= {*bounds}
    results, _ = check_bounds(bounds, steps, steps)
    assert all(each.value is not None for each in results)
    return [each.metric for each in results if not each.holds]
