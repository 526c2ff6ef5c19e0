"""`grpo matrix report`: the files."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from grpo.matrix.history import Row, TestTime
from grpo.matrix.load import Matrix
from grpo.matrix.report.content import gather
from grpo.matrix.report.figures import draw_matrix
from grpo.matrix.report.html import render_html
from grpo.matrix.report.markdown import render_markdown
from grpo.telemetry.journal import disk_error, replace_text


def write_matrix_report(
    matrix: Matrix, rows: Sequence[Row], tests: Sequence[TestTime], folder: Path, now: dt.datetime
) -> tuple[Path, Path]:
    """Write `matrix.html` and `matrix.md`; returns their paths. Raises TelemetryError for a folder it cannot write."""
    content = gather(matrix, rows, tests, now)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) from error
    page, document = folder / "matrix.html", folder / "matrix.md"
    replace_text(page, render_html(content, draw_matrix(rows)))
    replace_text(document, render_markdown(content))
    return page, document
