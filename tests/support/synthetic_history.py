"""A history of verdicts as it may look after a month, for tests of the report: every state, a step, missing values."""

import random

from grpo.matrix.history import Row

PHASES = {"generation": 84.0, "policy_training": 28.0, "logprobs": 18.0, "refit": 14.0, "other": 3.0}


def training_case(case, partition, days=30, seed=1, moved_at=20):
    """A case that is judged by its seconds, whose refit becomes slower one day."""
    noise = random.Random(seed)
    rows = []
    for day in range(days):
        time, late = f"2026-11-{day % 30 + 1:02}T02:00:00Z", day >= moved_at
        seconds = {name: value * (1 + noise.gauss(0, 0.01)) for name, value in PHASES.items()}
        seconds["refit"] += 12.0 * late
        total = sum(seconds.values())
        outcome = "fail" if total > 155 else "pass"
        common = (time, case, partition, "cuda", f"{day:040x}", f"run-{day}", outcome, "regression" if late else "")
        rows.append(Row(*common, "timing/total", total, 132.0, 155.0, "s"))
        rows += [Row(*common, f"timing/{name}", value, None, None, "s") for name, value in seconds.items()]
    return rows


def one(case, outcome, *, partition="cpu-local", stack="cpu", failure="", time="2026-11-30T01:00:00Z", **figure):
    return Row(time, case, partition, stack, "abc", "", outcome, failure, **figure)


def whole_history():
    return [
        *training_case("70b-megatron", "h100-80g"),
        *training_case("8b-dtensor", "h100-80g", seed=2, moved_at=99),
        one("8b-dtensor", "not judged", partition="h200-141g", stack="cuda"),
        one("8b-megatron", "faster", partition="h100-80g", stack="cuda", metric="timing/total", value=90.0, lower=95.0,
            upper=115.0, unit="s"),
        one("trainer", "pass", metric="tests/seconds", value=31.0, unit="s"),
        one("engines", "fail", failure="correctness", metric="tests/seconds", value=50.0, unit="s"),
        *(one("unit-data", "pass", stack="core", time=f"2026-11-{day:02}T00:00:00Z") for day in (1, 2)),
        *(one("tiny-hf", "pass", metric="train/reward", value=0.3 + day / 100, lower=0.2,
              time=f"2026-11-{day:02}T00:00:00Z") for day in range(1, 9)),
    ]  # fmt: skip
