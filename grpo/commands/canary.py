"""`grpo canary`: what the nodes can do right now."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from grpo.commands.compare import SheetFormat, SheetFormatOption, show_sheet
from grpo.commands.judge import MatricesOption


def canary(
    partition: Annotated[str, typer.Option("--partition", metavar="P", help="exit 1 below its rates")] = "",
    out: Annotated[Path, typer.Option(help="file to write")] = Path("canary.json"),
    disk: Annotated[Path | None, typer.Option(help="folder to write to as a test; default: that of --out")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="processes to start where no launcher has; default: one a GPU")
    ] = None,
    bad: Annotated[
        Path | None, typer.Option(help="with --partition: file for the names of the nodes at fault, one a line")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but errors")] = False,
    output: SheetFormatOption = SheetFormat.table,
    matrices: MatricesOption = None,
) -> None:
    """Measure matrix products, copies and all-reduce of every node and pair of nodes, in under 20 s.

    By itself it uses all GPUs of this machine; under srun or torchrun, one rank a GPU, all nodes.
    """
    from grpo.matrix.canary.measure import launched, measure
    from grpo.matrix.canary.show import canary_sheet
    from grpo.matrix.judge.machine import check_canary
    from grpo.matrix.load import find_matrices, load_matrix
    from grpo.telemetry.journal import replace_json

    site = load_matrix(find_matrices(matrices)).partition(partition) if partition else None
    environ = dict(os.environ)
    if not launched(environ):
        out.unlink(missing_ok=True)
    found = measure(out, disk or out.absolute().parent, environ, ranks=ranks)
    if found is not None:
        replace_json(out, found)
    elif not out.is_file() or launched(environ):
        return  # a rank that is not the first
    else:
        found = json.loads(out.read_text(encoding="utf-8"))
    machine = None if site is None else check_canary(found, site)
    if bad is not None and machine is not None and machine.exclude:
        bad.write_text("".join(f"{name}\n" for name in machine.exclude), encoding="utf-8")
    if not quiet:
        show_sheet(canary_sheet(found, site, machine), found, output)
    raise typer.Exit(1 if machine is not None and machine.health == "bad" else 0)
