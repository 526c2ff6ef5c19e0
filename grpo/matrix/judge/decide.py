"""Putting the rules together: from what was found to one verdict."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from grpo.matrix.judge.attribution import attribute
from grpo.matrix.judge.bands import compare, provisional
from grpo.matrix.judge.bounds import check_bounds
from grpo.matrix.judge.comparable import check_config, check_nodes, check_stack
from grpo.matrix.judge.evidence import PHASE_METRICS, TOTAL, Evidence
from grpo.matrix.judge.failure import FailureClass, classify
from grpo.matrix.judge.sanity import REQUIRED, check_values
from grpo.matrix.judge.steps import LEAST_STEPS, check_steps, select
from grpo.matrix.judge.verdict import BoundResult, Comparison, Finding, Outcome, Steps, Verdict
from grpo.matrix.judge.words import attribution_words, metric_words, number, per_cent, signed, total_words
from grpo.matrix.schema import Case, Partition, Reference

_ROW_ROUNDING = 0.5  # seconds of each column of a bare row


def judge_run(
    evidence: Evidence,
    case: Case,
    reference: Reference | None,
    *,
    partition_name: str,
    partition: Partition,
    expected_config: Mapping[str, Any],
) -> Verdict:
    """Judge a run. `expected_config` is what the case's recipe and overrides resolve to."""
    name = (case.id, partition_name)
    ended = _how_it_ended(evidence)
    if ended:
        return _verdict(name, ended, run=evidence.run, reference=reference)
    refused = [*check_config(expected_config, evidence.config), *check_nodes(evidence, case, partition)]
    if refused:
        return _verdict(name, refused, run=evidence.run, reference=reference)
    chosen = select(evidence.metrics, evidence.resume_steps, case.warmup_steps)
    least = min(LEAST_STEPS, case.min_steps or LEAST_STEPS)
    findings = check_steps(chosen, steps=case.steps, least=least)
    findings += check_values(chosen.training, _required(case))
    bounds, broken = check_bounds(case.checks.bounds, chosen.judged, chosen.training)
    findings += broken
    doubts = _doubts(case, reference) + ([] if reference is None else check_stack(evidence, reference))
    comparisons: list[Comparison] = []
    values: dict[str, float] = {}
    if reference is not None and reference.source.kind != "none":
        timed = [metric for record in chosen.judged[:1] for metric in record if metric.startswith("timing/")]
        values = _medians([*reference.values, *timed], chosen.judged)
        comparisons = _comparisons(values, case, reference, may_gate=not doubts)
    steps, findings = chosen.summary(), findings + doubts
    return _verdict(
        name, findings, comparisons, bounds, values, reference=reference, steps=steps, run=evidence.run
    )  # fmt: skip


def judge_row(row: Mapping[str, float], case: Case, reference: Reference | None, *, partition_name: str) -> Verdict:
    """Judge a bare row of a table (metric -> value) by the case's reference. Stack and steps are taken on trust."""
    findings = [
        Finding(5, metric, f"{metric_words(metric)} is missing from the row", "correctness")
        for metric in case.checks.against_reference
        if metric not in row and (reference is None or metric in reference.values)
    ]
    impossible = [metric for metric, value in row.items() if not math.isfinite(value) or value < 0]
    findings += [
        Finding(5, metric, f"{metric_words(metric)} = {row[metric]} is not a duration", "correctness")
        for metric in impossible
    ]
    phases = [row[metric] for metric in PHASE_METRICS if metric in row]
    if TOTAL in row and sum(phases) > row[TOTAL] + _ROW_ROUNDING * (len(phases) + 1):
        message = f"the phases sum to {number(sum(phases))} s, more than the total of {number(row[TOTAL])} s"
        findings.append(Finding(2, TOTAL, message, "correctness"))
    doubts = _doubts(case, reference)
    comparisons: list[Comparison] = []
    if reference is not None and reference.source.kind != "none" and not impossible:
        comparisons = _comparisons(row, case, reference, may_gate=not doubts)
    return _verdict((case.id, partition_name), findings + doubts, comparisons, (), row, reference=reference)


def _required(case: Case) -> Iterable[str]:
    checks = case.checks
    shares = [bound.share_of for bound in checks.bounds.values() if bound.share_of is not None]
    return (*REQUIRED, *checks.present, *checks.against_reference, *checks.bounds, *shares)


def _how_it_ended(evidence: Evidence) -> list[Finding]:
    """Rule 7: only a run that went to its end is judged."""
    job = evidence.job
    failure = None if job is None else classify(job)
    if job is not None and failure is not None:
        state = "no state" if job.state is None else job.state
        code = "no exit code of the trainer" if job.exit_code is None else f"exit code {job.exit_code} of the trainer"
        return [Finding(7, "job", f"the job ended with {state} and {code}; the run is {evidence.state}", failure)]
    if evidence.state == "completed":
        return []
    if evidence.state == "running":
        return [Finding(7, "manifest.json", "the run is still going", None)]
    classes: dict[str, FailureClass] = {"failed": "crash"}
    message = f"the run was {evidence.state}" if evidence.state != "failed" else "the run failed"
    return [Finding(7, "manifest.json", message, classes.get(evidence.state, "unknown"))]


def _doubts(case: Case, reference: Reference | None) -> list[Finding]:
    """Why figures cannot decide: no reference, or one that does not gate (rules 1, 3 and 5)."""
    if not case.checks.against_reference:
        return []
    if reference is None:
        return [Finding(5, "reference", "there is no reference for this case on this partition", None)]
    source = reference.source
    if source.kind == "none":
        return [Finding(5, "reference", f"no reference yet: {source.reason} ({source.owner}, {source.date})", None)]
    reasons = []
    if case.min_steps is not None and case.min_steps < LEAST_STEPS:
        reasons.append(f"its reference is provisional: the case is judged on {case.min_steps} steps")
    few = provisional(reference)
    if few is not None:
        reasons.append(few)
    absent = [metric for metric in case.checks.against_reference if metric not in reference.values]
    if absent and source.kind == "measured":
        reasons.append(f"its reference lacks {', '.join(absent)}")
    return [Finding(1, "reference", reason, None) for reason in reasons]


def _medians(metrics: Iterable[str], judged: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = {}
    for metric in dict.fromkeys(metrics):
        values = [record[metric] for record in judged if record.get(metric) is not None]
        if values and all(map(math.isfinite, values)):
            found[metric] = median(values)
    return found


def _comparisons(values: Mapping[str, float], case: Case, reference: Reference, *, may_gate: bool) -> list[Comparison]:
    judged = set(case.checks.against_reference)
    return [
        compare(metric, values[metric], reference, may_gate=may_gate and metric in judged)
        for metric in reference.values
        if metric in values
    ]


def _verdict(
    name: tuple[str, str],
    findings: Sequence[Finding],
    comparisons: Sequence[Comparison] = (),
    bounds: Sequence[BoundResult] = (),
    values: Mapping[str, float] | None = None,
    *,
    reference: Reference | None,
    steps: Steps | None = None,
    run: str | None = None,
) -> Verdict:
    findings = [*findings, *(_regression(one) for one in comparisons if one.gates and one.status == "worse")]
    outcome = _outcome(findings, comparisons)
    attribution = () if reference is None or values is None else attribute(values, reference)
    failures = [one.failure for one in findings if one.failure is not None]
    # A wrong result is not excused by being slow as well.
    failures.sort(key=lambda failure: failure == "regression")
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
    )
    return replace(draft, sentence=_sentence(draft))


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


def _sentence(verdict: Verdict) -> str:
    """One line for people: the outcome, the total, and what explains it."""
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
    return f"{outcome}: {'; '.join(parts)}"
