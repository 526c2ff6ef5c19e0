"""`grpo matrix schema`, `tests`: what editors and test runners need of the matrix."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from grpo.commands.judge import MatricesOption


def schema(matrices: MatricesOption = None) -> None:
    """Write the JSON Schemas of the matrix's files, for editors."""
    from grpo.matrix.editors import write_schemas
    from grpo.matrix.load import find_matrices

    for path in write_schemas(find_matrices(matrices)):
        typer.echo(path)


def arguments_of_tests(
    layer: Annotated[str, typer.Argument(help="unit, functional, gpu or cluster")],
    cases: Annotated[list[str], typer.Argument(metavar="CASE ...", help="exactly these cases of the layer")],
    matrices: MatricesOption = None,
) -> None:
    """Print, as JSON, the arguments with which pytest runs exactly these cases."""
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.suites import pytest_arguments

    typer.echo(json.dumps(pytest_arguments(load_matrix(find_matrices(matrices)), layer, cases)))


def select(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE ...", help="more files that changed")] = None,
    changed: Annotated[list[str] | None, typer.Option("--changed", metavar="FILE", help="files that changed")] = None,
    base: Annotated[str | None, typer.Option(help="what changed since this branch left that one, as git says")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="say for each case why it is chosen, or is not")] = False,
    layer: Annotated[str | None, typer.Option(help="of this layer alone")] = None,
    cadence: Annotated[str | None, typer.Option(help="of this cadence alone")] = None,
    matrices: MatricesOption = None,
) -> None:
    """List the cases that a change needs; all of them where that is unsure."""
    from grpo.errors import MatrixError
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.select import changed_files
    from grpo.matrix.select import select as selected

    given = [*(changed or []), *(files or [])]
    if bool(given) == (base is not None):
        raise MatrixError("what has changed? Give --changed FILE ..., or --base BRANCH")
    matrix = load_matrix(find_matrices(matrices))
    root = matrix.folder.resolve().parent
    names = given or changed_files(root, base or "")
    chosen = {one.case: one.reason for one in selected(matrix, root, names)}
    for case in matrix.all.values():
        if layer not in (None, case.layer) or cadence not in (None, case.cadence):
            continue
        if explain:
            typer.echo(
                f"{'run ' if case.id in chosen else 'skip'} {case.id}: {chosen.get(case.id, 'nothing of it changed')}"
            )
        elif case.id in chosen:
            typer.echo(case.id)
