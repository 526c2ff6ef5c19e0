"""Old and new stack in turn: what the change of stack did, and the references that follow from it."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.errors import MatrixError
from grpo.matrix.accept.merge import JudgedRun, merge
from grpo.matrix.accept.propose import Proposal, Row, check_runs, propose, stack_difference
from grpo.matrix.compare.abba import Ratio, ratio_of
from grpo.matrix.judge.bands import GATING_RUNS, compare
from grpo.matrix.judge.evidence import TOTAL
from grpo.matrix.judge.words import number
from grpo.matrix.schema import Case, Reference


@dataclass(frozen=True)
class Rebased:
    """The proposed reference and how it comes about."""

    change: str  # of the stack, in words
    ratios: tuple[Ratio, ...]  # new stack over old, over pairs of neighbours
    rows: tuple[Row, ...]
    reference: Reference
    provisional: bool


def rebased(
    old: Sequence[JudgedRun],
    new: Sequence[JudgedRun],
    case: Case,
    reference: Reference | None,
    *,
    today: dt.date,
    approved_by: str | None = None,
) -> Rebased:
    """Propose the new stack's reference. Its values come from the new runs, and the anchors stay.

    Raises MatrixError: too few runs or bad ones, runs that were not interleaved, one stack on both sides, different
    commits (then the code changed as well), or old runs outside the reference's bands (then the machine changed as
    well).
    """
    check_runs(old)
    check_runs(new)
    before = merge(old, case, today=today)
    after = merge(new, case, today=today, approved_by=approved_by)
    assert before.source.kind == after.source.kind == "measured"
    if before.source.commit != after.source.commit:
        raise MatrixError(
            f"the runs are of the commits {before.source.commit} and {after.source.commit}: a change of stack is its "
            "own change, with the same code on both sides"
        )
    change = stack_difference(before.source, after.source)
    if not change:
        raise MatrixError("old and new runs are of the same stack and image: `nox -s accept` is for these")
    pairs = _pairs(old, new)
    _check_old(before, reference)
    proposal = _moved(reference, after)
    ratios = tuple(
        ratio_of(metric, [(a.verdict.values[metric], b.verdict.values[metric]) for a, b in pairs])
        for metric in before.values
        if metric in after.values
    )
    return Rebased(change, ratios, proposal.rows, proposal.reference, len(new) < GATING_RUNS)


def _pairs(old: Sequence[JudgedRun], new: Sequence[JudgedRun]) -> list[tuple[JudgedRun, JudgedRun]]:
    """Neighbours in time, one of each side: whatever drifts meanwhile meets both."""
    if len(old) != len(new):
        raise MatrixError(f"{len(old)} runs of the old stack and {len(new)} of the new: run as many of each, in turn")
    sides = {id(run): "old" for run in old} | {id(run): "new" for run in new}
    in_time = sorted([*old, *new], key=lambda run: run.evidence.started or 0.0)
    pairs = []
    for first, second in zip(in_time[::2], in_time[1::2], strict=True):
        if sides[id(first)] == sides[id(second)]:
            raise MatrixError(
                f"{first.path} and {second.path} ran one after the other and are both of the {sides[id(first)]} stack: "
                "old and new have to be interleaved"
            )
        pairs.append((first, second) if sides[id(first)] == "old" else (second, first))
    return pairs


def _check_old(before: Reference, reference: Reference | None) -> None:
    """Old code on the old stack must still measure what the reference says."""
    if reference is None or reference.source.kind != "measured":
        return
    assert before.source.kind == "measured"
    differing = stack_difference(reference.source, before.source)
    if differing:
        raise MatrixError(f"the old runs are not of the reference's stack ({differing})")
    for metric in (TOTAL, *reference.values):
        if metric in before.values and metric in reference.values:
            one = compare(metric, before.values[metric].value, reference, may_gate=True)
            if one.gates and one.status in ("worse", "better"):
                raise MatrixError(
                    f"the old stack itself no longer measures its reference ({metric} {number(one.value)} against "
                    f"{number(one.reference)}): find out why first, or the change is hidden in the rebase"
                )


def _moved(reference: Reference | None, after: Reference) -> Proposal:
    """As when runs are accepted, but for the stack, which is meant to differ; every value is the new runs'."""
    if reference is None or reference.source.kind != "measured":
        return propose(reference, after)
    assert after.source.kind == "measured"
    source = reference.source.model_copy(update={"stack": after.source.stack, "image": after.source.image})
    return propose(reference.model_copy(update={"source": source}), after, every_value=True)
