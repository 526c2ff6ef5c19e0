"""Change points in the history of verdicts, found by the ruptures library: what became slower when, by how much.

It informs and never blocks: a band would let a figure creep for weeks within its width. Runs in an environment of its
own (`nox -s drift`), so it reads the CSV itself.
"""

import argparse
import csv
import itertools
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LEAST_VALUES = 10
LEAST_SEGMENT = 4  # values on each side of a change
LEAST_CHANGE = 0.01  # of the median before
LEAST_NOISE = 0.002  # of a value; a series without any would make a change of everything
PENALTY = 3.0  # times log n, in units of the noise's variance


@dataclass(frozen=True)
class Point:
    time: str
    commit: str
    run: str
    value: float


@dataclass(frozen=True)
class Change:
    """A level that moved."""

    case: str
    partition: str
    metric: str
    first: Point  # after it
    before: float  # medians
    after: float
    values: tuple[int, int]  # on both sides

    @property
    def words(self) -> str:
        relative = 100 * (self.after / self.before - 1) if self.before else math.inf
        return (
            f"{self.first.time[:10]} {self.case} on {self.partition}: {self.metric} "
            f"{self.before:.4g} -> {self.after:.4g} ({relative:+.1f} %), "
            f"first at commit {self.first.commit[:12] or 'unknown'} "
            f"({self.values[0]} values before, {self.values[1]} after)"
        )


Key = tuple[str, str, str]


def read_series(path: Path) -> dict[Key, list[Point]]:
    """Values by case, partition and metric, oldest first."""
    found: dict[Key, list[Point]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            value = float(row["value"]) if row["value"] else math.nan
            if row["metric"] and math.isfinite(value):
                key = row["case"], row["partition"], row["metric"]
                found.setdefault(key, []).append(Point(row["time"], row["commit"], row["run"], value))
    return {key: sorted(points, key=lambda point: point.time) for key, points in found.items()}


def changes(key: Key, points: Sequence[Point]) -> list[Change]:
    """Where the level of one series moved."""
    import numpy as np
    import ruptures

    values = [point.value for point in points]
    if len(values) < LEAST_VALUES or min(values) <= 0:
        return []
    logs = np.log(np.asarray(values))
    steps = [abs(b - a) for a, b in itertools.pairwise(logs)]
    noise = max(statistics.median(steps) / (math.sqrt(2) * 0.6745), LEAST_NOISE)
    search = ruptures.Pelt(model="l2", min_size=LEAST_SEGMENT, jump=1).fit((logs / noise).reshape(-1, 1))
    ends = search.predict(pen=PENALTY * math.log(len(values)))
    found = []
    for start, middle, end in zip([0, *ends], ends, ends[1:], strict=False):
        before, after = statistics.median(values[start:middle]), statistics.median(values[middle:end])
        if abs(after / before - 1) >= LEAST_CHANGE:
            found.append(Change(*key, points[middle], before, after, (middle - start, end - middle)))
    return found


def self_check() -> list[str]:
    """What of two known series is not found as it is."""
    noise = random.Random(7)  # noqa: S311 - no secret
    flat = [100 * (1 + noise.gauss(0, 0.01)) for _ in range(40)]
    moved = [value * (1.05 if number >= 25 else 1) for number, value in enumerate(flat)]
    problems = []
    for name, values, expected in (("flat", flat, []), ("moved", moved, [25])):
        points = [Point(f"2026-01-{n:02}", str(n), "", value) for n, value in enumerate(values)]
        places = [int(one.first.commit) for one in changes(("c", "p", "m"), points)]
        if len(places) != len(expected) or any(abs(a - b) > 1 for a, b in zip(places, expected, strict=False)):
            problems.append(f"the {name} series changes at {places}, expected {expected}")
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", type=Path, default=Path("runs/history.csv"))
    parser.add_argument("--check", action="store_true", help="try it on series whose changes are known")
    options = parser.parse_args(arguments)
    if options.check:
        problems = self_check()
        print("\n".join(problems) or "known changes are found, and no others")
        return 1 if problems else 0
    if not options.history.is_file():
        print(f"no history at {options.history}: nothing to compare")
        return 0
    try:
        series = read_series(options.history)
    except (OSError, ValueError, KeyError) as error:
        print(f"{options.history} cannot be read as a history: {error!r}", file=sys.stderr)
        return 0
    found = [change for key, points in series.items() for change in changes(key, points)]
    for change in sorted(found, key=lambda one: one.first.time):
        print(change.words)
    print(f"{len(found)} changes in {len(series)} series")
    return 0


if __name__ == "__main__":
    sys.exit(main())
