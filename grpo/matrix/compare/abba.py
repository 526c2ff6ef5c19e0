"""Old and new run in turn (rule 11): did this change slow it down?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from grpo.errors import MatrixError
from grpo.matrix.compare.signflip import MOST_PAIRS, sign_flip_p
from grpo.matrix.judge.evidence import PHASE_METRICS, TOTAL

LEAST_PAIRS = 6
SLOWER = 1.02
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class TurnRun:
    """One run of the sequence."""

    path: str
    values: Mapping[str, float]  # its figures by metric
    started: float | None  # seconds since 1970
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Ratio:
    """New over old of one metric, over the pairs."""

    metric: str
    ratios: tuple[float, ...]
    median: float
    p: float  # of the exact one-sided sign-flip test


@dataclass(frozen=True)
class Turns:
    """What a sequence says. `rows` begins with the total."""

    pairs: int
    rows: tuple[Ratio, ...]
    slower: bool


def in_turn(runs: Sequence[TurnRun]) -> Turns:
    """Judge runs given in the order old, new, new, old, old, new, ...: neighbours are pairs.

    Slower: at least six pairs, a median ratio of the total above 1.02, and p < 0.05. Raises MatrixError for too few
    pairs, an odd number, runs that did not start in this order, or on different nodes.
    """
    if len(runs) % 2 or not LEAST_PAIRS <= len(runs) // 2 <= MOST_PAIRS:
        raise MatrixError(
            f"{len(runs)} runs: ABBA takes {LEAST_PAIRS} to {MOST_PAIRS} pairs, as OLD NEW NEW OLD OLD NEW ..."
        )
    check_order(runs)
    pairs = [_old_new(runs[at], runs[at + 1], at // 2) for at in range(0, len(runs), 2)]
    metrics = [metric for metric in (TOTAL, *PHASE_METRICS) if all(_positive(metric, *pair) for pair in pairs)]
    if TOTAL not in metrics:
        raise MatrixError(f"not every run has {TOTAL}")
    rows = tuple(
        ratio_of(metric, [(old.values[metric], new.values[metric]) for old, new in pairs]) for metric in metrics
    )
    total = rows[0]
    return Turns(len(pairs), rows, slower=total.median > SLOWER and total.p < SIGNIFICANT)


def ratio_of(metric: str, pairs: Sequence[tuple[float, float]]) -> Ratio:
    """New over old of (old, new) pairs."""
    ratios = tuple(new / old for old, new in pairs)
    return Ratio(metric, ratios, median(ratios), sign_flip_p(ratios))


def check_order(runs: Sequence[TurnRun]) -> None:
    """Raise MatrixError unless the runs started one after another on the same nodes."""
    paths = [run.path for run in runs]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise MatrixError(f"{twice[0]} is given twice")
    for earlier, later in pairwise(runs):
        if earlier.started is not None and later.started is not None and later.started < earlier.started:
            raise MatrixError(
                f"{later.path} started before {earlier.path}: give the runs in the order in which they ran"
            )
        if earlier.hosts != later.hosts:
            raise MatrixError(
                f"{later.path} was on {', '.join(later.hosts)}, and {earlier.path} on {', '.join(earlier.hosts)}: old "
                "and new are run in turn in one allocation"
            )


def _old_new(first: TurnRun, second: TurnRun, pair: int) -> tuple[TurnRun, TurnRun]:
    return (first, second) if pair % 2 == 0 else (second, first)


def _positive(metric: str, old: TurnRun, new: TurnRun) -> bool:
    return old.values.get(metric, 0.0) > 0 and new.values.get(metric, 0.0) > 0
