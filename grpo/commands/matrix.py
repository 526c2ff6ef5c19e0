"""`grpo matrix`: the cases that the project is tested with."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grpo.commands.judge import Format, FormatOption, MatricesOption, show
from grpo.commands.matrix_tools import HistoryOption, arguments_of_tests, record, remember, report, run, schema, select

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The test matrix: what is tested, on what, how often."
)
app.command()(schema)
app.command()(select)
app.command()(record)
app.command()(report)
app.command()(run)
app.command("tests")(arguments_of_tests)


@app.command("list")
def list_cases(matrices: MatricesOption = None, history: HistoryOption = None) -> None:
    """List every case as a table."""
    from grpo.matrix.history import HISTORY, last_verdicts, read_history
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.show.listing import case_table

    # Ids are copied from here, so they are not cut where the output is no terminal.
    console = Console(width=None if sys.stdout.isatty() else 200)
    last = last_verdicts(read_history(history or HISTORY))
    console.print(case_table(load_matrix(find_matrices(matrices)), last))


@app.command()
def explain(
    case: Annotated[str, typer.Argument(metavar="CASE", help="exactly one case")], matrices: MatricesOption = None
) -> None:
    """Show everything that one case resolves to."""
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.show.listing import explanation

    matrix = load_matrix(find_matrices(matrices))
    Console(soft_wrap=True, highlight=False, markup=False).print(explanation(matrix, matrix.any_case(case)))


@app.command()
def submit(
    case: Annotated[str, typer.Argument(metavar="CASE", help="exactly one case")],
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="P", help="where to run it; default: the case's only one")
    ] = None,
    account: Annotated[str | None, typer.Option(metavar="A", help="Slurm's, instead of the partition's")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write the job script and submit nothing")] = False,
    max_queue: Annotated[float, typer.Option(min=0, help="seconds that the job may wait in the queue")] = 86400.0,
    folder: Annotated[
        Path | None, typer.Option(help="of the run; default: a new one in the partition's shared storage")
    ] = None,
    output: FormatOption = Format.table,
    history: HistoryOption = None,
    matrices: MatricesOption = None,
) -> None:
    """Run one case as a Slurm job, wait for it, and judge it. Exit codes as of `grpo judge`."""
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.slurm.cases import job_of, partition_of
    from grpo.matrix.slurm.submit import Waiting, submit_and_judge, write_dry

    matrix = load_matrix(find_matrices(matrices))
    chosen = matrix.case(case)
    partition = partition_of(matrix, chosen, partition)
    shared = Path(matrix.partition(partition).storage.shared)
    folder = folder or shared / f"{case}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
    job = job_of(matrix, chosen, partition, environ=os.environ, working_directory=Path.cwd(), account=account)
    if dry_run:
        Console().print(write_dry(job, folder.resolve()))
        return
    waiting = Waiting(max_queue, say=lambda text: typer.echo(text, err=True))
    verdict = submit_and_judge(matrix, chosen, partition, job, folder.resolve(), waiting=waiting)
    remember(matrix, verdict, None, history)
    show(verdict, output)
    raise typer.Exit(verdict.exit_code())
