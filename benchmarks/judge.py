"""How long a thousand cases take to judge: `python -m benchmarks.judge [CASES]`."""

import sys
from time import perf_counter
from typing import Any

from grpo.matrix.judge import judge_runs
from tests.support import matrix as made

_made: Any = made  # tests have no types


def main() -> None:
    """Judge runs of 42 steps with every metric, each read already, and print the seconds."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    runs = [
        _made.evidence([_made.record(step, {"refit": 14.0 + n % 3}) for step in range(1, 43)]) for n in range(count)
    ]
    the_case, reference = _made.case(steps=42), _made.measured()
    started = perf_counter()
    verdicts = [
        judge_runs(
            [run], the_case, reference, partition_name="here", partition=_made.PARTITION, expected_config=_made.CONFIG
        )
        for run in runs
    ]  # fmt: skip
    seconds = perf_counter() - started
    failed = sum(verdict.outcome == "fail" for verdict in verdicts)
    print(f"{count} cases in {seconds:.2f} s, {failed} of them slower than their band")


if __name__ == "__main__":
    main()
