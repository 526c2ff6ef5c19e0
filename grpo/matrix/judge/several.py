"""One run is not the last word (rules 4, 6 and 7): what has to run again, and the median of three."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from grpo.errors import MatrixError
from grpo.matrix.judge.conclude import conclude, sentence_of
from grpo.matrix.judge.decide import compare_all, judge_run
from grpo.matrix.judge.evidence import Evidence
from grpo.matrix.judge.failure import RETRIED
from grpo.matrix.judge.machine import RETRIES, check_canary
from grpo.matrix.judge.verdict import Rerun, Verdict
from grpo.matrix.judge.words import number
from grpo.matrix.schema import Case, Partition, Reference
from grpo.matrix.schema.types import seconds_of

DECIDING = 3
OUTSIDE_RULE = 4  # of the rules of judgement: a rerun because of the figures, not of the machine


def judge_runs(
    runs: Sequence[Evidence],
    case: Case,
    reference: Reference | None,
    *,
    partition_name: str,
    partition: Partition,
    expected_config: Mapping[str, Any],
    gpu_hours_left: float | None = None,
) -> Verdict:
    """Judge a run together with its reruns, in any order.

    Outside the band, two more runs are asked for, on other nodes and within `gpu_hours_left` (None: no limit); of three
    the median of each figure decides, each run's figures being its own. A run that a machine spoilt does not count and
    is asked for again, twice at most. A wrong result in any run is a failure that no other run outvotes.

    Raises MatrixError for no run, the same run twice, and more than three that count: to choose three of them would be
    to choose the verdict.
    """
    _check_distinct(runs)
    judged = [
        judge_run(
            run, case, reference, partition_name=partition_name, partition=partition, expected_config=expected_config
        )
        for run in runs
    ]
    counted = [(run, verdict) for run, verdict in zip(runs, judged, strict=True) if verdict.failure not in RETRIED]
    spoilt = [(run, verdict) for run, verdict in zip(runs, judged, strict=True) if verdict.failure in RETRIED]
    if len(counted) > DECIDING:
        raise MatrixError(f"{len(counted)} runs: a verdict is the median of {DECIDING}, and of no chosen three of more")
    if not counted:
        run, verdict = spoilt[-1]
        rerun = _retry(run, verdict, case, partition) if len(spoilt) <= RETRIES else None
        more = "" if rerun is not None else f"retried {RETRIES} times: the machine has to be mended"
        return _asking(replace(verdict, runs=_ids(runs)), rerun, gpu_hours_left, more)
    worst = min((verdict for _, verdict in counted), key=_severity)
    if _severity(worst) < _OUTSIDE:
        return replace(worst, runs=_ids(runs))
    if len(counted) == DECIDING:
        return _of_three([run for run, _ in counted], [verdict for _, verdict in counted], case, reference)
    if _severity(worst) > _OUTSIDE:
        return replace(worst, runs=_ids(runs))
    more_runs = _two_more([run for run, _ in counted], case)
    return _asking(replace(worst, runs=_ids(runs)), more_runs, gpu_hours_left, "")


_OUTSIDE = 2


def _severity(verdict: Verdict) -> int:
    """0 wrong, 1 cannot be judged, 2 outside the band, 3 within."""
    if verdict.outcome == "fail":
        return _OUTSIDE if verdict.failure == "regression" else 0
    return {"not judged": 1, "faster": _OUTSIDE, "pass": 3}[verdict.outcome]


def _check_distinct(runs: Sequence[Evidence]) -> None:
    if not runs:
        raise MatrixError("no run to judge")
    names = [run.run for run in runs if run.run is not None]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MatrixError(f"the run {twice[0]} is given twice: a rerun is another run")


def _ids(runs: Sequence[Evidence]) -> tuple[str, ...]:
    return tuple(run.run for run in runs if run.run is not None)


def hours_of_run(run: Evidence, case: Case) -> float:
    """GPU-hours that a run took, or may take where it does not say."""
    seconds = run.seconds if run.seconds is not None else seconds_of(case.time_limit)
    return seconds / 3600 * case.gpus


def _two_more(runs: Sequence[Evidence], case: Case) -> Rerun:
    missing = DECIDING - len(runs)
    nodes = tuple(sorted({host for run in runs for host in run.hosts}))
    hours = missing * max(hours_of_run(run, case) for run in runs)
    return Rerun(OUTSIDE_RULE, missing, nodes, hours, "outside the band: the median of three runs decides")


def _retry(run: Evidence, verdict: Verdict, case: Case, partition: Partition) -> Rerun:
    rule = verdict.findings[0].rule if verdict.findings[0].rule == 7 else 6
    exclude = check_canary(run.canary, partition).exclude if rule == 6 else ()
    if rule == 6 and not exclude:
        exclude = run.hosts
    return Rerun(rule, 1, exclude, hours_of_run(run, case), "the machine, not the software, spoilt this run")


def _asking(verdict: Verdict, rerun: Rerun | None, gpu_hours_left: float | None, more: str) -> Verdict:
    """The verdict with what is to run, if the budget has room for it; it stands as it is until then."""
    if rerun is not None and gpu_hours_left is not None and rerun.gpu_hours > gpu_hours_left:
        more = f"not run again: that takes {number(rerun.gpu_hours)} GPU-hours, and {number(gpu_hours_left)} are left"
        rerun = None
    if rerun is not None:
        where = f" on other nodes than {', '.join(rerun.exclude)}" if rerun.exclude else ""
        more = f"{rerun.runs} more run{'s' if rerun.runs > 1 else ''} asked for{where}"
    return replace(verdict, rerun=rerun, sentence=sentence_of(verdict, *([more] if more else [])))


def _of_three(
    runs: Sequence[Evidence], verdicts: Sequence[Verdict], case: Case, reference: Reference | None
) -> Verdict:
    shared = set(verdicts[0].values).intersection(*(verdict.values for verdict in verdicts[1:]))
    values = {metric: median(verdict.values[metric] for verdict in verdicts) for metric in shared}
    gates = any(one.gates for verdict in verdicts for one in verdict.comparisons)
    comparisons = [] if reference is None else compare_all(values, case, reference, may_gate=gates)
    middle = sorted(verdicts, key=lambda verdict: verdict.values.get("timing/total", 0.0))[1]
    slowest = {f"timing/{share.phase}": share.slowest for share in middle.attribution if share.slowest is not None}
    verdict = conclude(
        (middle.case, middle.partition), (), comparisons, middle.bounds, values, reference=reference,
        steps=middle.steps, run=middle.run, nodes=middle.nodes, slowest=slowest,
    )  # fmt: skip
    shares_nodes = len({host for run in runs for host in run.hosts}) < sum(len(run.hosts) for run in runs)
    said = f"median of {DECIDING} runs" + (", some on the same nodes" if shares_nodes else "")
    return replace(verdict, runs=_ids(runs), sentence=sentence_of(verdict, said))
