"""`grpo judge`: hold a run, or a bare row of a table, against a case of the matrix."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from grpo.errors import MatrixError

if TYPE_CHECKING:
    from grpo.matrix.judge import Verdict
    from grpo.matrix.load import Matrix


class Format(StrEnum):
    table = "table"
    json = "json"
    junit = "junit"
    markdown = "markdown"


MatricesOption = Annotated[
    Path | None, typer.Option("--matrices", help="folder of the matrix; default: `matrices` here, or the checkout's")
]
FormatOption = Annotated[Format, typer.Option("--format", help="how to print the verdict")]


def judge(
    run_directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN [RUN RUN]", help="directory of a run that has ended, and of its reruns"),
    ] = None,
    case: Annotated[str, typer.Option("--case", metavar="ID", help="exactly one case of the matrix")] = "",
    partition: Annotated[str, typer.Option("--partition", metavar="P", help="where the run was")] = "",
    values: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=SECONDS,...", help="judge these instead: total=178,policy_training=31,refit=26,generation=87"
        ),
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="faster than the reference fails as well")] = False,
    gpu_hours_left: Annotated[
        float | None, typer.Option(min=0, help="no rerun is asked for that takes more; default: no limit")
    ] = None,
    output: FormatOption = Format.table,
    matrices: MatricesOption = None,
) -> None:
    """Judge a run by a case of the matrix. Exit codes: 0 pass, 1 fail, 2 not judged (and bad input)."""
    from grpo.matrix.judge import judge_row, row_of
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.run import accept_command, judge_directories

    if bool(run_directories) == (values is not None):
        raise MatrixError("what is to be judged? Give a run directory, or --values NAME=SECONDS,...")
    if not case or not partition:
        raise MatrixError("against what? Give --case ID and --partition P; `grpo matrix list` lists both")
    matrix = load_matrix(find_matrices(matrices))
    chosen = matrix.case(case)
    check_partition(matrix, case, partition)
    if run_directories:
        runs = [(path, None) for path in run_directories]
        verdict = judge_directories(matrix, chosen, partition, runs, gpu_hours_left=gpu_hours_left)
        if chosen.checks.against_reference and verdict.values:
            typer.echo(f"to accept, with further runs: {accept_command(run_directories)}", err=True)
    else:
        verdict = judge_row(
            row_of(values or ""), chosen, matrix.reference(partition, case), partition_name=partition
        )  # fmt: skip
    show(verdict, output)
    raise typer.Exit(verdict.exit_code(release=release))


def check_partition(matrix: Matrix, case: str, partition: str) -> None:
    """Raise MatrixError where the case is not for this partition."""
    matrix.partition(partition)
    allowed = matrix.case(case).partitions
    if partition not in allowed:
        raise MatrixError(f"the case {case} is for {', '.join(allowed)}, not for the partition {partition}")


def show(verdict: Verdict, output: Format) -> None:
    """Print a verdict."""
    from grpo.matrix.show.junit import verdicts_junit
    from grpo.matrix.show.markdown import verdict_markdown
    from grpo.matrix.show.table import verdict_table

    if output is Format.table:
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
        console.print(verdict_table(verdict))
    elif output is Format.json:
        typer.echo(json.dumps(verdict.to_json(), indent=2, allow_nan=False))
    elif output is Format.junit:
        typer.echo(verdicts_junit([verdict]), nl=False)
    else:
        typer.echo(verdict_markdown(verdict), nl=False)
