"""Which rank, on which node, took longest for each phase."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grpo.matrix.judge.evidence import PHASE_METRICS
from grpo.matrix.judge.verdict import Slowest


def slowest_ranks(ranks: Sequence[Mapping[str, Any]], steps: set[int]) -> dict[str, Slowest]:
    """By metric, over the lines of these steps. A phase whose ranks are not those of `hosts` or no numbers is left out.

    Ranks wait for each other within a phase that has collectives; what a rank's own line says there is its time up to
    the last of them, so that only what does not wait (generation, copies, preparation) tells a straggler for certain.
    """
    lines = [line for line in ranks if line.get("step") in steps and isinstance(line.get("hosts"), list)]
    found = {}
    for metric in PHASE_METRICS:
        rows = [(line["hosts"], line[metric]) for line in lines if isinstance(line.get(metric), list)]
        rows = [(hosts, seconds) for hosts, seconds in rows if all(isinstance(one, int | float) for one in seconds)]
        rows = [(hosts, seconds) for hosts, seconds in rows if len(hosts) == len(seconds) == len(rows[0][0])]
        if not rows or len(rows[0][0]) < 2:
            continue
        each = [median(seconds[rank] for _, seconds in rows) for rank in range(len(rows[0][0]))]
        rank = max(range(len(each)), key=each.__getitem__)
        found[metric] = Slowest(rank, str(rows[-1][0][rank]), each[rank], median(each))
    return found
