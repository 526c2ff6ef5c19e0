"""Putting the rules together for one run, or one row of a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from grpo.matrix.judge.bands import compare, provisional
from grpo.matrix.judge.bounds import check_bounds
from grpo.matrix.judge.comparable import check_config, check_nodes, check_stack
from grpo.matrix.judge.conclude import conclude
from grpo.matrix.judge.evidence import PHASE_METRICS, TOKENS, TOTAL, Evidence
from grpo.matrix.judge.failure import FailureClass, classify
from grpo.matrix.judge.machine import check_canary
from grpo.matrix.judge.measured import check_benchmark
from grpo.matrix.judge.ranks import slowest_ranks
from grpo.matrix.judge.replayed import check_lengths
from grpo.matrix.judge.resumed import check_resumed
from grpo.matrix.judge.sanity import REQUIRED, check_values
from grpo.matrix.judge.steps import LEAST_STEPS, check_steps, select
from grpo.matrix.judge.verdict import Comparison, Finding, Verdict
from grpo.matrix.judge.words import metric_words, number
from grpo.matrix.schema import Case, Partition, Reference

_JUDGED_PREFIXES = ("timing/", "performance/", "memory/")
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
    own: dict[str, Any] = {"reference": reference, "run": evidence.run, "nodes": evidence.hosts}
    ended = how_it_ended(evidence)
    if ended:
        return conclude(name, ended, **own)
    if not case.trains:
        return conclude(name, _canary_alone(evidence, case, partition), **own)
    refused = [*check_config(expected_config, evidence.config), *check_nodes(evidence, case, partition)]
    if refused:
        return conclude(name, refused, **own)
    chosen = select(evidence.metrics, evidence.resume_steps, case.warmup_steps)
    least = min(LEAST_STEPS, case.min_steps or LEAST_STEPS)
    findings = check_steps(chosen, steps=case.steps, least=least)
    findings += check_values(chosen.training, _required(case))
    bounds, broken = check_bounds(case.checks.bounds, chosen.judged, chosen.training)
    findings += broken
    findings += check_resumed(case.interrupted, evidence.metrics, evidence.discarded, evidence.resume_steps)
    measured, missed = check_benchmark(case.benchmark, evidence.benchmark)
    bounds += measured
    findings += missed
    doubts = [*_doubts(case, reference), *_of_the_machine(evidence, case, partition)]
    doubts += [] if reference is None else check_stack(evidence, reference)
    doubts += check_lengths(case.lengths, chosen.judged)
    values = figures(chosen.judged)
    findings += _took_no_time(values, case, reference)
    comparisons: list[Comparison] = []
    if reference is not None and reference.source.kind != "none":
        comparisons = compare_all(values, case, reference, may_gate=not doubts)
    return conclude(
        name, findings + doubts, comparisons, bounds, values, steps=chosen.summary(),
        slowest=slowest_ranks(evidence.ranks, {record["step"] for record in chosen.judged}), **own,
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
    findings += _took_no_time(row, case, reference)
    doubts = _doubts(case, reference)
    if not case.checks.against_reference:
        message = "the case is judged by bounds on every step, which a row does not have"
        doubts.append(Finding(5, "reference", message, None))
    comparisons: list[Comparison] = []
    if reference is not None and reference.source.kind != "none" and not impossible:
        comparisons = compare_all(row, case, reference, may_gate=not doubts)
    return conclude((case.id, partition_name), findings + doubts, comparisons, (), row, reference=reference)


def _took_no_time(values: Mapping[str, float], case: Case, reference: Reference | None) -> list[Finding]:
    """A phase that the reference has and the run has not is missing from it, and not merely faster."""
    known = {} if reference is None else reference.values
    return [
        Finding(
            5, metric, f"{metric_words(metric)} took no time, and {number(known[metric].value)} s before", "correctness"
        )
        for metric in case.checks.against_reference
        if metric.startswith("timing/") and metric in known and values.get(metric) == 0
    ]


def _required(case: Case) -> Iterable[str]:
    checks = case.checks
    shares = [bound.share_of for bound in checks.bounds.values() if bound.share_of is not None]
    return (*REQUIRED, *checks.present, *checks.against_reference, *checks.bounds, *shares)


def how_it_ended(evidence: Evidence) -> list[Finding]:
    """Rule 7: only a run that went to its end is judged."""
    job = evidence.job
    failure = None if job is None else classify(job)
    if job is not None and failure is not None:
        state = "no state" if job.state is None else job.state
        code = "no exit code of the trainer" if job.exit_code is None else f"exit code {job.exit_code} of the trainer"
        return [Finding(7, "job", f"the job ended with {state} and {code}; the run is {evidence.state}", failure)]
    if evidence.state == "completed":
        return _contradictions(evidence)
    if evidence.state == "running":
        return [Finding(7, "manifest.json", "the run is still going", None)]
    classes: dict[str, FailureClass] = {"failed": "crash"}
    message = f"the run was {evidence.state}" if evidence.state != "failed" else "the run failed"
    return [Finding(7, "manifest.json", message, classes.get(evidence.state, "unknown"))]


def _contradictions(evidence: Evidence) -> list[Finding]:
    """What a completed run says of its end must be so: else its files were cut, added to or put together."""
    findings = []
    if evidence.exit_code not in (None, 0):
        message = f"the run says that it was completed, with exit code {evidence.exit_code}"
        findings.append(Finding(7, "manifest.json", message, "crash"))
    last = evidence.metrics[-1]["step"] if evidence.metrics else None
    if evidence.last_step is not None and evidence.last_step != last:
        message = f"the run ended with step {evidence.last_step}, and its metrics with {last or 'none'}"
        findings.append(Finding(5, "metrics.jsonl", message, "correctness"))
    return findings


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


def _of_the_machine(evidence: Evidence, case: Case, partition: Partition) -> list[Finding]:
    """Rule 6; it matters where figures are judged."""
    machine = check_canary(evidence.canary, partition, evidence.hosts)
    declared = any(rate is not None for rate in partition.canary.model_dump().values())
    if machine.health == "bad":
        return [Finding(6, "canary.json", problem, "infra") for problem in machine.problems]
    if machine.health == "unknown" and declared and partition.gpu is not None and case.checks.against_reference:
        return [Finding(6, "canary.json", problem, None) for problem in machine.problems]
    return []


def _canary_alone(evidence: Evidence, case: Case, partition: Partition) -> list[Finding]:
    """Rule 6 for a case that is nothing but its canary: every node measured, and none below the partition's rates."""
    nodes = evidence.canary.get("nodes", [])
    pretended = partition.gpu is None  # several nodes of a CPU partition may be one machine
    if not nodes or (len(nodes) != case.nodes and not pretended):
        message = f"the canary measured {len(nodes)} nodes, and the case has {case.nodes}"
        return [Finding(6, "canary.json", message, "correctness")]
    machine = check_canary(evidence.canary, partition)
    if machine.health == "bad":
        return [Finding(6, "canary.json", problem, "infra") for problem in machine.problems]
    if machine.health == "unknown" and partition.gpu is not None:
        return [Finding(6, "canary.json", problem, None) for problem in machine.problems]
    return []


def figures(judged: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A run's figures by metric: of seconds and rates the median over the judged steps, of memory the most.

    What is not a finite number in every step that has it has no figure.
    """
    found = {}
    for metric in dict.fromkeys(metric for record in judged[:1] for metric in record):
        if metric != TOKENS and not metric.startswith(_JUDGED_PREFIXES):
            continue
        values = [record[metric] for record in judged if record.get(metric) is not None]
        if values and all(map(math.isfinite, values)):
            found[metric] = max(values) if metric.startswith("memory/") else median(values)
    return found


def compare_all(values: Mapping[str, float], case: Case, reference: Reference, *, may_gate: bool) -> list[Comparison]:
    """Every figure that the reference has; those that the case does not ask for only inform."""
    judged = set(case.checks.against_reference)
    return [
        compare(metric, values[metric], reference, may_gate=may_gate and metric in judged)
        for metric in reference.values
        if metric in values
    ]
