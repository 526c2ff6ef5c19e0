"""Judged runs of the synthetic case, for what merges or compares them."""

from dataclasses import replace

from grpo.matrix.accept.merge import JudgedRun
from tests.support.matrix import STACK, case, evidence, measured, nodes, record, verdict


def judged(name, seconds=None, *, host="node0", started=0.0, stack=None, commit="abc", reference=None, **changes):
    """One run whose steps all take `seconds` by phase, held against a measured reference."""
    records = [record(step, seconds, **changes) for step in range(1, 26)]
    seen = evidence(
        records, run=name, nodes=[{**nodes()[0], "host": host}], started=started, commit=commit, stack=stack or STACK
    )
    return JudgedRun(f"runs/{name}", seen, verdict(seen, case(), reference or measured()))


def renamed(run, **changes):
    return replace(run, evidence=replace(run.evidence, **changes))
