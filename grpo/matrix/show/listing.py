"""The cases of the matrix: as a table, and one of them with everything that it resolves to."""

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo.config import layout
from grpo.config.yaml_format import dump
from grpo.matrix.design import cells
from grpo.matrix.history import Row
from grpo.matrix.judge.bands import band_of, provisional
from grpo.matrix.judge.words import number
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import hours_of, overrides_of, resolve_case
from grpo.matrix.schema import Case, Partition, Reference, Suite
from grpo.matrix.show.table import limits
from grpo.matrix.suites import pytest_arguments

WRAPPED = ("partitions", "judged by", "last verdict")


def case_table(matrix: Matrix, last: Mapping[tuple[str, str], Row]) -> Table:
    """One row a case. `last` is the latest verdict by case and partition."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("case", "layer", "tier", "cadence", "GPUs", "hours", "partitions", "judged by", "last verdict"):
        table.add_column(
            column, justify="right" if column in ("GPUs", "hours") else "left", no_wrap=column not in WRAPPED
        )
    for case in matrix.all.values():
        hours = sum(hours_of(case))
        table.add_row(
            case.id, case.layer, case.tier, case.cadence, str(case.gpus), f"{hours:.3g}", ", ".join(case.partitions),
            _judged_by(matrix, case), _last_words(matrix, case, last),
        )  # fmt: skip
    return table


def _judged_by(matrix: Matrix, case: Case | Suite) -> str:
    if isinstance(case, Suite):
        return "tests"
    if not case.checks.against_reference:
        return "bounds only"
    return ", ".join(_reference_words(matrix.reference(name, case.id)) for name in case.partitions)


def _last_words(matrix: Matrix, case: Case | Suite, last: Mapping[tuple[str, str], Row]) -> str:
    words = [
        f"{row.outcome} {row.time[:10]}" for name in case.partitions if (row := last.get((case.id, name))) is not None
    ]
    text = ", ".join(words) or "never ran"
    return f"{text} (quarantined)" if case.id in matrix.quarantine.cases else text


def case_lines(matrix: Matrix) -> list[str]:
    """The expanded list as text: what a change of the data adds or takes away is one line of a snapshot each."""
    return [
        f"{case.id} {case.layer} {case.tier} {case.cadence} {','.join(case.partitions)} {','.join(case.stacks)} "
        + _what_runs(case)
        for case in matrix.all.values()
    ]


def _what_runs(case: Case | Suite) -> str:
    if isinstance(case, Case):
        where = f"{case.nodes}x{case.gpus_per_node}"
        if not case.trains:
            return f"{where} canary alone"
        return f"{where} {case.recipe} {' '.join([*overrides_of(case), *_beside(case)])}"
    text = " ".join(case.tests)
    return f"{text} ({len(cells(case))} cells of a {case.design} design)" if case.factors else text


def _beside(case: Case) -> list[str]:
    """What a job does besides training undisturbed."""
    found = []
    if case.interrupted is not None:
        found.append(f"(killed after step {case.interrupted.after_step}, requeued)")
    if case.benchmark is not None:
        found.append(f"(then {' '.join([case.benchmark.module, *case.benchmark.arguments])})")
    return found


def explanation(matrix: Matrix, case: Case | Suite) -> RenderableType:
    """Everything that the case resolves to."""
    return _suite_explanation(matrix, case) if isinstance(case, Suite) else _case_explanation(matrix, case)


def _suite_explanation(matrix: Matrix, suite: Suite) -> RenderableType:
    lines = [
        f"{suite.id} ({matrix.origins[suite.id]}), owner {suite.owner}",
        f"command: nox -s {suite.layer} -- {suite.id}",
        f"tests: pytest {' '.join(pytest_arguments(matrix, suite.layer, [suite.id]))}",
        f"selected by {', '.join(['its tests', 'all that they import', *suite.paths])}; {suite.tier}, {suite.cadence}",
        f"up to {suite.time_limit} over {', '.join(suite.partitions)}, on the stacks {', '.join(suite.stacks)}",
    ]
    if suite.factors:
        chosen = cells(suite)
        lines.append(f"{len(chosen)} cells of a {suite.design} design")
        lines += [f"  {', '.join(f'{factor}={value}' for factor, value in cell.items())}" for cell in chosen[:200]]
    return Text("\n".join(lines))


def _case_explanation(matrix: Matrix, case: Case) -> RenderableType:
    """Where the case is from, its ranks and cost, its references with their bands, and its whole configuration."""
    resolved = resolve_case(case)
    ranks = layout(resolved.config)
    gpu_hours, cpu_hours = hours_of(case)
    cost = f"up to {gpu_hours:.3g} GPU-hours" if gpu_hours else f"up to {cpu_hours:.3g} hours"
    lines = [
        f"{case.id} ({matrix.origins[case.id]}), owner {case.owner}",
        f"command: grpo train {case.recipe} {' '.join([*overrides_of(case), *_beside(case)])}"
        if case.trains
        else f"command: grpo canary --partition {case.partitions[0]}",
        f"ranks: {ranks.training_gpus} train, {ranks.generation_gpus} generate; "
        + ", ".join(f"{name} {degree}" for name, degree in case.parallel),
        f"{case.steps} steps, {case.warmup_steps} of warm-up; {cost} over {', '.join(case.partitions)}",
        f"selected by {', '.join(case.paths)}; {case.tier}, {case.cadence}",
    ]
    parts: list[RenderableType] = [Text("\n".join(lines))]
    for name in case.partitions:
        parts.append(Text(_partition_words(name, matrix.partition(name))))
        reference = matrix.reference(name, case.id)
        if reference is not None:
            parts.append(_reference_table(name, case, reference))
    if case.checks.bounds:
        bounds = {metric: bound.model_dump(exclude_defaults=True) for metric, bound in case.checks.bounds.items()}
        parts.append(Text(dump({"bounds": bounds})))
    parts.append(Text(resolved.resolved.to_yaml()))
    return Group(*parts)


def _partition_words(name: str, partition: Partition) -> str:
    gpu = partition.gpu
    if gpu is None:
        return f"{name}: {partition.description}"
    return (
        f"{name}: {partition.description}; {partition.gpus_per_node} x {gpu.name} a node, {gpu.memory_gib} GiB, "
        f"{gpu.bf16_dense_tflops} TFLOP/s in dense bfloat16, {gpu.memory_gb_per_s} GB/s"
    )


def _reference_words(reference: Reference | None) -> str:
    if reference is None:
        return "missing"
    return "provisional" if provisional(reference) else reference.source.kind


def _reference_table(name: str, case: Case, reference: Reference) -> Table:
    source = reference.source
    about = source.title if source.kind == "published" else f"since {source.date}"
    table = Table(title=f"{name}: {source.kind}, {about}", title_justify="left", header_style="bold")
    for column in ("metric", "value", "unit", "band", "gates"):
        table.add_column(column)
    for metric, figure in reference.values.items():
        band = band_of(metric, reference)
        gates = band.gates and metric in case.checks.against_reference and provisional(reference) is None
        table.add_row(
            metric, number(figure.value), figure.unit, limits(band.lower, band.upper), "yes" if gates else "no"
        )  # fmt: skip
    return table
