"""`grpo doctor`: is this machine set up as a run needs it?"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from grpo.commands.compare import SheetFormat, SheetFormatOption, show_sheet
from grpo.commands.judge import MatricesOption


def doctor(
    partition: Annotated[str, typer.Option("--partition", metavar="P", help="what this node is to be one of")] = "",
    output: SheetFormatOption = SheetFormat.table,
    matrices: MatricesOption = None,
) -> None:
    """Check driver, versions, network, limits and folders; every failure says what to do. Exit 1 if one failed."""
    from grpo.matrix.doctor.checks import examine
    from grpo.matrix.doctor.facts import gather
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.matrix.show.sheet import Grid, Sheet

    site = load_matrix(find_matrices(matrices)).partition(partition) if partition else None
    checks = examine(gather(os.environ), site)
    failed = [check for check in checks if check.status == "failed"]
    rows = [(check.name, check.status, check.found, check.fix) for check in checks]
    heading = f"{len(failed)} of {len(checks)} checks failed" if failed else f"{len(checks)} checks, none failed"
    sheet = Sheet(heading, grids=[Grid("", ("", "", "found", "what to do"), rows, texts=(0, 1, 2, 3))])
    show_sheet(sheet, {"schema_version": 1, "checks": [asdict(check) for check in checks]}, output)
    raise typer.Exit(1 if failed else 0)
