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
