"""`grpo compare`: two runs by tokens, or old and new in turn."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo.commands.accept import console
from grpo.errors import MatrixError

if TYPE_CHECKING:
    from grpo.matrix.show.sheet import Sheet


class SheetFormat(StrEnum):
    table = "table"
    json = "json"
    markdown = "markdown"


SheetFormatOption = Annotated[SheetFormat, typer.Option("--format", help="how to print it")]


def compare(
    run_directories: Annotated[
        list[Path], typer.Argument(metavar="A B", help="two runs; with --abba OLD NEW NEW OLD OLD NEW ..., 12 or more")
    ],
    abba: Annotated[bool, typer.Option("--abba", help="old and new run in turn: exit 1 if the new is slower")] = False,
    tolerance: Annotated[
        float, typer.Option(min=0, max=0.5, help="by which the computed tokens of a pair may differ, as a share")
    ] = 0.01,
    warmup: Annotated[int, typer.Option(min=0, help="steps left out at the start and after every resume")] = 5,
    output: SheetFormatOption = SheetFormat.table,
) -> None:
    """Compare two runs step by step, steps of nearly the same computed tokens: compute, and each overhead apart."""
    from grpo.matrix.compare.abba import in_turn
    from grpo.matrix.compare.matched import matched
    from grpo.matrix.compare.read import side_of, turn_of
    from grpo.matrix.compare.show import matched_sheet, turns_sheet

    if abba:
        turns = in_turn([turn_of(path, warmup_steps=warmup) for path in run_directories])
        show_sheet(turns_sheet(turns), {"schema_version": 1, **asdict(turns)}, output)
        raise typer.Exit(int(turns.slower))
    if len(run_directories) != 2:
        raise MatrixError(f"{len(run_directories)} runs: give two, or --abba with OLD NEW NEW OLD ...")
    first, second = (side_of(path, warmup_steps=warmup) for path in run_directories)
    result = matched(first, second, tolerance=tolerance)
    show_sheet(matched_sheet(result), result.to_json(), output)


def show_sheet(sheet: Sheet, plain: dict[str, Any], output: SheetFormat) -> None:
    """Print a sheet, or its values as JSON."""
    from grpo.matrix.show.sheet import sheet_markdown, sheet_table

    if output is SheetFormat.table:
        console().print(sheet_table(sheet))
    elif output is SheetFormat.json:
        typer.echo(json.dumps(plain, indent=2, allow_nan=False))
    else:
        typer.echo(sheet_markdown(sheet), nl=False)
