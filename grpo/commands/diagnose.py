"""`grpo diagnose`: what is slow, in which part, by how much, and what usually does that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo.commands.compare import SheetFormat, SheetFormatOption, show_sheet
from grpo.commands.judge import MatricesOption
from grpo.errors import MatrixError


def diagnose(
    run_directory: Annotated[Path | None, typer.Argument(help="of a run, also one that is still going")] = None,
    partition: Annotated[str, typer.Option("--partition", metavar="P", help="where the run was")] = "",
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case", metavar="ID", help="whose reference; default: by which the run was judged, or which it is"
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SECONDS,...", help="a row of a table instead, one --case each; may be repeated"),
    ] = None,
    output: SheetFormatOption = SheetFormat.table,
    matrices: MatricesOption = None,
) -> None:
    """Say why a run is slow. It judges nothing: the exit code is 0."""
    from grpo.matrix.diagnose.diagnose import diagnose as diagnosed
    from grpo.matrix.diagnose.read import of_row, of_run
    from grpo.matrix.diagnose.show import diagnosis_sheet, side_by_side
    from grpo.matrix.load import find_matrices, load_matrix

    cases, rows = case or [], values or []
    if (run_directory is None) == (not rows):
        raise MatrixError("what is to be diagnosed? Give a run directory, or --values NAME=SECONDS,...")
    if not partition:
        raise MatrixError("where was it? Give --partition P; `grpo matrix list` lists them")
    if rows and len(rows) != len(cases):
        raise MatrixError(f"{len(rows)} x --values and {len(cases)} x --case: each row is of one case")
    if run_directory is not None and len(cases) > 1:
        raise MatrixError("a run is of one case: give --case once")
    matrix = load_matrix(find_matrices(matrices))
    matrix.partition(partition)
    if run_directory is not None:
        subjects = [of_run(matrix, partition, cases[0] if cases else "", run_directory)]
    else:
        subjects = [of_row(matrix, partition, name, row) for name, row in zip(cases, rows, strict=True)]
    found = [diagnosed(subject.seen, subject.reference, subject.machine) for subject in subjects]
    if output is SheetFormat.json:
        show_sheet(diagnosis_sheet(found[0]), {"diagnoses": [one.to_json() for one in found]}, output)
        return
    for one in found:
        show_sheet(diagnosis_sheet(one), {}, output)
    if len(found) > 1:
        show_sheet(side_by_side(found), {}, output)
