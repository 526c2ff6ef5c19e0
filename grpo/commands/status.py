"""`grpo status`: where a run is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from grpo.commands.judge import MatricesOption
from grpo.errors import MatrixError

if TYPE_CHECKING:
    from grpo.matrix.load import Matrix
    from grpo.matrix.status import JobView


def status(
    target: Annotated[
        str, typer.Argument(metavar="RUN_DIR|JOB", help="a run directory, a job's folder, or its number")
    ],
    matrices: MatricesOption = None,
) -> None:
    """Say where a run is: state, queue reason, nodes, step, checkpoint, GPU-hours, step against the reference."""
    from grpo.matrix.show.status import status_lines
    from grpo.matrix.slurm.jobs import job_folder, job_in, job_view
    from grpo.matrix.status import find_folder, status_of

    job: JobView | None
    if re.fullmatch(r"\d+", target) and not Path(target).exists():
        folder, job = job_folder(target), job_view(target)
    else:
        folder = find_folder(Path(target).resolve())
        job = job_in(folder)
    Console(highlight=False, markup=False, soft_wrap=True).print(
        "\n".join(status_lines(status_of(folder, job, _matrix(matrices))))
    )


def _matrix(folder: Path | None) -> Matrix | None:
    """None where there is no matrix, unless one was named: a run of no case has a status as well."""
    from grpo.matrix.load import find_matrices, load_matrix

    try:
        return load_matrix(find_matrices(folder))
    except MatrixError:
        if folder is not None:
            raise
        return None
