"""`grpo matrix schema`, `tests`, `select`, `record`, `report`: what editors, test runners and CI need of the matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.commands.judge import Format, FormatOption, MatricesOption, show

if TYPE_CHECKING:
    from grpo.matrix.judge import Verdict
    from grpo.matrix.load import Matrix

HistoryOption = Annotated[
    Path | None, typer.Option("--history", help="CSV of earlier verdicts; default: runs/history.csv")
]


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


def record(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH ...", help="verdicts as JSON, JUnit files, or folders of both")
    ],
    stack: Annotated[str | None, typer.Option(help="that ran; default: the case's first")] = None,
    partition: Annotated[str, typer.Option(help="of the JUnit files' tests")] = "cpu-local",
    commit: Annotated[str, typer.Option(help="that was tested")] = "",
    history: HistoryOption = None,
    matrices: MatricesOption = None,
) -> None:
    """Append verdicts to the history, a CSV file; those that it has already are left out."""
    from grpo.matrix.history import HISTORY, append, read_history, rows_of_paths, unknown_rows
    from grpo.matrix.load import find_matrices, load_matrix

    matrix = load_matrix(find_matrices(matrices))
    found = rows_of_paths(paths, matrix, stack=stack, partition=partition, commit=commit)
    rows = unknown_rows(found, read_history(history or HISTORY))
    append(history or HISTORY, rows)
    typer.echo(f"{len(rows)} rows of {len({row.key for row in rows})} verdicts appended to {history or HISTORY}")


def remember(matrix: Matrix, verdict: Verdict, run_directory: Path | None, history: Path | None) -> None:
    """Append one verdict to the history; its commit is of the run directory, where that is known."""
    from grpo.matrix.history import HISTORY, About, append, verdict_rows
    from grpo.telemetry.reader import read_manifest

    commit = None
    if run_directory is not None and verdict.run is not None:
        commit = read_manifest(run_directory).git_commit
    about = About.now(matrix.any_case(verdict.case).stacks[0], commit or "")
    append(history or HISTORY, verdict_rows(verdict.to_json(), about))


def report(
    output: Annotated[Path, typer.Option(help="folder for matrix.html and matrix.md")] = Path("runs/report"),
    reports: Annotated[Path, typer.Option(help="folder of JUnit files, for the slowest tests")] = Path("runs/junit"),
    history: HistoryOption = None,
    matrices: MatricesOption = None,
) -> None:
    """Draw the whole matrix as one HTML page, and as Markdown."""
    import datetime as dt

    from grpo.matrix.history import HISTORY, read_history, read_junit
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.report import write_matrix_report

    matrix = load_matrix(find_matrices(matrices))
    tests = [test for path in sorted(reports.rglob("*.xml")) for test in read_junit(path)]
    for path in write_matrix_report(matrix, read_history(history or HISTORY), tests, output, dt.datetime.now(dt.UTC)):
        typer.echo(path)


def run(
    case: Annotated[str, typer.Argument(metavar="CASE", help="exactly one case, of one node")],
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="P", help="what this machine is; default: the case's only one")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="of the run; default: a new one in runs/verdicts")] = None,
    release: Annotated[bool, typer.Option("--release", help="faster than the reference fails as well")] = False,
    output: FormatOption = Format.table,
    history: HistoryOption = None,
    matrices: MatricesOption = None,
) -> None:
    """Run one case on this machine, without a scheduler, and judge it; outside its band it runs three times.

    Exit codes: `grpo judge`; 0 in quarantine.
    """
    import datetime as dt

    from grpo.errors import MatrixError
    from grpo.matrix.here import RUN, run_until_decided
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.run import VERDICT
    from grpo.telemetry.journal import replace_json

    matrix = load_matrix(find_matrices(matrices))
    chosen = matrix.case(case)
    if partition is None and len(chosen.partitions) > 1:
        raise MatrixError(f"the case {case} is for {', '.join(chosen.partitions)}: name one with --partition")
    where = partition or chosen.partitions[0]
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    folder = folder or Path("runs") / "verdicts" / f"{case}-{where}-{stamp}"
    verdict = run_until_decided(matrix, chosen, where, folder, say=lambda text: typer.echo(text, err=True))
    if not (folder / RUN / VERDICT).is_file():  # there is no run to keep it with
        replace_json(folder / VERDICT, verdict.to_json())
    remember(matrix, verdict, folder / RUN, history)
    show(verdict, output)
    typer.echo(f"run directory: {folder / RUN}", err=True)
    held = matrix.quarantine.cases.get(case)
    if held is not None and verdict.exit_code(release=release):
        typer.echo(f"{case} does not gate: {held.sentence}", err=True)
        return
    raise typer.Exit(verdict.exit_code(release=release))
