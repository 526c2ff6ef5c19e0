"""What `grpo plan` predicts of cases of the matrix, as a page: `python -m benchmarks.planned_cases CASE ...`.

Predictions, from dimensions and rates; the page says so. A measured run of the case is judged by its reference alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo.matrix.load import find_matrices, load_matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.schema import Case
from grpo.planning.parameters import load_model_shapes
from grpo.planning.partition import load_partition
from grpo.planning.plan import Assumptions, Plan, make_plan

GIB = 1 << 30
PHASES = ("refit", "generation", "logprobs", "policy_training", "other")


def plan_of(case: Case, partition: str, prompt_tokens: int) -> Plan:
    """The plan of a case's configuration on one of its partitions."""
    config = resolve_case(case).config
    model = load_model_shapes(config.policy.model_name, config.policy.model_revision)
    return make_plan(model, config, load_partition(partition), Assumptions(prompt_tokens=prompt_tokens))


def page(plans: Sequence[tuple[str, str, Plan]]) -> Iterator[str]:
    """Lines of two tables: seconds by phase, and memory by phase."""
    yield "| case | partition | step (s) | " + " | ".join(f"{name} (s)" for name in PHASES) + " | MFU | tokens/s/GPU |"
    yield "|---|---|" + "---:|" * (len(PHASES) + 3)
    for case, partition, plan in plans:
        seconds = {each.phase: each.seconds for each in plan.times}
        cells = " | ".join(f"{seconds.get(name, 0.0):.1f}" for name in PHASES)
        yield (
            f"| {case} | {partition} | {plan.seconds:.1f} | {cells} | {plan.training_mfu:.2f} | "
            f"{plan.tokens_per_second_per_gpu:.0f} |"
        )
    yield ""
    phases = list(dict.fromkeys(each.phase for _, _, plan in plans for each in plan.memory))
    yield "| case | partition | " + " | ".join(f"{name} (GiB)" for name in phases) + " | of | fits |"
    yield "|---|---|" + "---:|" * (len(phases) + 1) + "---|"
    for case, partition, plan in plans:
        most = {each.phase: each.total for each in sorted(plan.memory, key=lambda each: each.total)}
        cells = " | ".join(f"{most[name] / GIB:.1f}" if name in most else "-" for name in phases)
        limit = plan.setting.partition.memory_bytes.value / GIB
        yield f"| {case} | {partition} | {cells} | {limit:.1f} | {'yes' if plan.fits else 'no'} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned_cases", description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--prompt-tokens", type=int, default=150)
    parser.add_argument("--matrices", type=Path)
    options = parser.parse_args()
    matrix = load_matrix(find_matrices(options.matrices))
    plans = [
        (name, partition, plan_of(matrix.case(name), partition, options.prompt_tokens))
        for name in options.cases
        for partition in matrix.case(name).partitions
    ]
    print("\n".join(page(plans)))


if __name__ == "__main__":
    main()
