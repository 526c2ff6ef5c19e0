"""The cases of the matrix: as a table, and one of them with everything that it resolves to."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo.config import layout
from grpo.config.yaml_format import dump
from grpo.matrix.judge.bands import band_of, provisional
from grpo.matrix.judge.words import number
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import hours_of, overrides_of, resolve_case
from grpo.matrix.schema import Case, Partition, Reference
from grpo.matrix.show.table import limits


def case_table(matrix: Matrix) -> Table:
    """One row a case."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("case", "layer", "tier", "cadence", "GPUs", "hours", "partitions", "reference"):
        table.add_column(column, justify="right" if column in ("GPUs", "hours") else "left", no_wrap=True)
    for case in matrix.cases.values():
        hours = sum(hours_of(case))
        kinds = [_reference_words(matrix.reference(name, case.id)) for name in case.partitions]
        table.add_row(
            case.id, case.layer, case.tier, case.cadence, str(case.gpus), f"{hours:.3g}", ", ".join(case.partitions),
            ", ".join(kinds) if case.checks.against_reference else "bounds only",
        )  # fmt: skip
    return table


def case_lines(matrix: Matrix) -> list[str]:
    """The expanded list as text: what a change of the data adds or takes away is one line of a snapshot each."""
    return [
        f"{case.id} {case.layer} {case.tier} {case.cadence} {case.nodes}x{case.gpus_per_node} "
        f"{','.join(case.partitions)} {case.recipe} {' '.join(overrides_of(case))}"
        for case in matrix.cases.values()
    ]


def explanation(matrix: Matrix, case: Case) -> RenderableType:
    """Where the case is from, its ranks and cost, its references with their bands, and its whole configuration."""
    resolved = resolve_case(case)
    ranks = layout(resolved.config)
    gpu_hours, cpu_hours = hours_of(case)
    cost = f"up to {gpu_hours:.3g} GPU-hours" if gpu_hours else f"up to {cpu_hours:.3g} hours"
    lines = [
        f"{case.id} ({matrix.origins[case.id]}), owner {case.owner}",
        f"command: grpo train {case.recipe} {' '.join(overrides_of(case))}",
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
