"""`grpo accept` and `grpo rebase`: make judged runs the reference of their case."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from grpo.commands.judge import MatricesOption, check_partition
from grpo.errors import MatrixError

if TYPE_CHECKING:
    from grpo.matrix.load import Matrix
    from grpo.matrix.schema import Reference

CaseOption = Annotated[str, typer.Option("--case", metavar="ID", help="default: that by which the runs were judged")]
PartitionOption = Annotated[str, typer.Option("--partition", metavar="P", help="default: as of --case")]
ApprovedByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="who approves of a drift beyond 10 % from the first accepted value")
]


def accept(
    run_directories: Annotated[list[Path], typer.Argument(metavar="RUN_DIR ...", help="3 runs, 5 for a gate")],
    case: CaseOption = "",
    partition: PartitionOption = "",
    approved_by: ApprovedByOption = None,
    replace_published: Annotated[
        bool, typer.Option("--replace-published", help="put the measured values in the place of a published row")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would change, and write nothing")] = False,
    matrices: MatricesOption = None,
) -> None:
    """Merge runs into the reference of their case; values move only beyond a third of their band."""
    from grpo.matrix.accept.merge import merge
    from grpo.matrix.accept.propose import check_runs, propose
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.run import judged_run
    from grpo.matrix.show.proposal import proposal_table

    matrix = load_matrix(find_matrices(matrices))
    case, partition = _names(run_directories, case, partition)
    check_partition(matrix, case, partition)
    chosen = matrix.case(case)
    runs = [judged_run(matrix, chosen, partition, path) for path in run_directories]
    check_runs(runs)
    today = dt.datetime.now(dt.UTC).date()
    new = merge(runs, chosen, today=today, approved_by=approved_by)
    proposal = propose(matrix.reference(partition, case), new, replace_published=replace_published)
    console().print(proposal_table(proposal, runs))
    if not proposal.moves:
        typer.echo("nothing moves: the reference stays as it is")
    elif dry_run:
        typer.echo("nothing is written: --dry-run")
    else:
        typer.echo(f"written: {write(matrix, partition, case, proposal.reference)}")


def rebase(
    old: Annotated[Path, typer.Argument(help="folder of the run directories with the old stack")],
    new: Annotated[Path, typer.Argument(help="the same with the new stack, run interleaved with the old")],
    case: CaseOption = "",
    partition: PartitionOption = "",
    approved_by: ApprovedByOption = None,
    write_it: Annotated[
        bool, typer.Option("--accept", help="write the proposed reference; until then the case is not judged")
    ] = False,
    matrices: MatricesOption = None,
) -> None:
    """After a change of stack or image: tell it from a change of the code, and propose new references."""
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.rebase.rebase import rebased
    from grpo.matrix.rebase.show import rebase_table
    from grpo.matrix.run import judged_run

    matrix = load_matrix(find_matrices(matrices))
    folders = [_runs_in(old), _runs_in(new)]
    case, partition = _names([*folders[0], *folders[1]], case, partition)
    check_partition(matrix, case, partition)
    chosen = matrix.case(case)
    before, after = ([judged_run(matrix, chosen, partition, path) for path in paths] for paths in folders)
    result = rebased(
        before, after, chosen, matrix.reference(partition, case),
        today=dt.datetime.now(dt.UTC).date(), approved_by=approved_by,
    )  # fmt: skip
    console().print(rebase_table(result))
    if write_it:
        typer.echo(f"written: {write(matrix, partition, case, result.reference)}")
    else:
        typer.echo("nothing is written: the same command with --accept does")


def write(matrix: Matrix, partition: str, case: str, reference: Reference) -> Path:
    """Put a reference into the matrix, whole or not at all, and read it back."""
    from grpo.matrix.accept.write import reference_yaml
    from grpo.matrix.load import read_reference
    from grpo.telemetry.journal import replace_text

    path = matrix.folder / "references" / partition / f"{case}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, reference_yaml(reference))
    if read_reference(path) != reference:
        raise MatrixError(f"{path} does not read back as what was written")
    return path


def console() -> Console:
    """For tables: wide enough to be read where the output is no terminal."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)


def _names(directories: list[Path], case: str, partition: str) -> tuple[str, str]:
    from grpo.matrix.run import judged_as

    if case and partition:
        return case, partition
    found = {judged_as(path) for path in directories}
    if len(found) > 1:
        words = "; ".join(f"{name} on {where}" for name, where in sorted(found))
        raise MatrixError(f"the runs were judged by different cases ({words}): name one with --case and --partition")
    judged_case, judged_partition = found.pop()
    return case or judged_case, partition or judged_partition


def _runs_in(folder: Path) -> list[Path]:
    from grpo.telemetry.manifest import FILE_NAME

    runs = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    if not runs:
        raise MatrixError(f"there are no run directories in {folder} (folders with a {FILE_NAME})")
    return runs
