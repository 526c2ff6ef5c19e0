"""From what was found to one verdict, and its sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo.matrix.judge.attribution import attribute
from grpo.matrix.judge.evidence import TOTAL
from grpo.matrix.judge.verdict import BoundResult, Comparison, Finding, Outcome, Slowest, Steps, Verdict
from grpo.matrix.judge.words import attribution_words, metric_words, number, per_cent, signed, total_words
from grpo.matrix.schema import Reference


def conclude(
    name: tuple[str, str],
    findings: Sequence[Finding],
    comparisons: Sequence[Comparison] = (),
    bounds: Sequence[BoundResult] = (),
    values: Mapping[str, float] | None = None,
    *,
    reference: Reference | None,
    steps: Steps | None = None,
    run: str | None = None,
    nodes: tuple[str, ...] = (),
    slowest: Mapping[str, Slowest] | None = None,
) -> Verdict:
    """`name` is case and partition; regressions among the comparisons become findings."""
    findings = [*findings, *(_regression(one) for one in comparisons if one.gates and one.status == "worse")]
    outcome = _outcome(findings, comparisons)
    attribution = () if reference is None or values is None else attribute(values, reference, slowest)
    failures = [one.failure for one in findings if one.failure is not None]
    # A wrong result is not excused by being slow as well, nor by a node that is.
    failures.sort(key=lambda failure: failure in _EXCUSES)
    draft = Verdict(
        case=name[0],
        partition=name[1],
        outcome=outcome,
        sentence="",
        failure=failures[0] if failures else None,
        findings=tuple(findings),
        comparisons=tuple(comparisons),
        attribution=attribution,
        bounds=tuple(bounds),
        reference=None if reference is None else reference.source.kind,
        steps=steps,
        run=run,
        runs=() if run is None else (run,),
        nodes=nodes,
        values=dict(values or {}),
    )
    return replace(draft, sentence=sentence_of(draft))


_EXCUSES = ("regression", "infra")


def _outcome(findings: Sequence[Finding], comparisons: Sequence[Comparison]) -> Outcome:
    # A node that is not the partition's says nothing about the software; a job that the machine ended did fail.
    if any(one.failure is not None and (one.failure != "infra" or one.rule == 7) for one in findings):
        return "fail"
    if findings:
        return "not judged"
    return "faster" if any(one.gates and one.status == "better" for one in comparisons) else "pass"


def _regression(comparison: Comparison) -> Finding:
    beyond = comparison.upper if comparison.difference > 0 else comparison.lower
    assert beyond is not None
    message = (
        f"{metric_words(comparison.metric)} {number(comparison.value)} {comparison.unit} against "
        f"{number(comparison.reference)} ({signed(comparison.difference)}, {per_cent(comparison.relative)}), "
        f"beyond {number(beyond)}"
    )
    return Finding(9 if comparison.metric.startswith("memory/") else 3, comparison.metric, message, "regression")


def sentence_of(verdict: Verdict, *more: str) -> str:
    """One line for people: the outcome, the total, what explains it, and what else there is to say."""
    parts = []
    total = next((one for one in verdict.comparisons if one.metric == TOTAL), None)
    if total is not None:
        parts.append(f"total {total_words(total)}")
    if verdict.outcome == "fail" and total is not None and verdict.attribution:
        parts[-1] += f": {attribution_words(verdict.attribution)}"
    others = [one.message for one in verdict.findings if one.failure != "regression"]
    parts += others[:3] + ([f"and {len(others) - 3} more findings"] if len(others) > 3 else [])
    if verdict.outcome == "faster":
        parts.append("refresh the reference")
    if not parts:
        parts = [f"{len(verdict.bounds)} bounds hold" if verdict.bounds else "every rule is kept"]
    outcome = verdict.outcome if verdict.failure is None else f"{verdict.outcome} ({verdict.failure})"
    return f"{outcome}: {'; '.join([*parts, *more])}"
