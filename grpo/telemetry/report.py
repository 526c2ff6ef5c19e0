"""`grpo report`: a run directory drawn as HTML and Markdown."""

from pathlib import Path

from grpo.errors import TelemetryError
from grpo.telemetry.content import gather
from grpo.telemetry.figures import draw_figures, with_background
from grpo.telemetry.html import render_html
from grpo.telemetry.journal import disk_error, replace_text
from grpo.telemetry.markdown import render_markdown
from grpo.telemetry.reader import read_run

FIGURES = "figures"


def write_report(run_directory: str | Path, output: str | Path | None = None) -> tuple[Path, Path]:
    """Write `report.html`, `report.md` and `figures/*.svg`; returns the paths of the first two.

    `output` is the folder for them; None: the run directory itself. The run may be running, failed, or of one step.
    Raises TelemetryError: no run there, a file of it that cannot be read, a folder that cannot be written.
    """
    run = read_run(run_directory)
    folder = Path(run_directory if output is None else output)
    content = gather(run)
    figures = draw_figures(run)
    config = run.path / "config.yaml"
    config_text = config.read_text(encoding="utf-8") if config.is_file() else ""
    try:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) from error
    for figure in figures:
        replace_text(folder / FIGURES / f"{figure.name}.svg", with_background(figure).svg)
    page, document = folder / "report.html", folder / "report.md"
    replace_text(page, render_html(content, figures, config_text))
    replace_text(document, render_markdown(content, figures, FIGURES))
    return page, document


__all__ = ["TelemetryError", "write_report"]
