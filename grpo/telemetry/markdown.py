"""The report as Markdown, for pull requests and terminals: the same numbers, the pictures as files beside it."""

import html
import re
from collections.abc import Iterable, Sequence

from grpo.telemetry.content import Content
from grpo.telemetry.figures import Figure


def render_markdown(content: Content, figures: Sequence[Figure], figures_folder: str) -> str:
    """The whole document; pictures are `<figures_folder>/<name>.svg`."""
    parts = [
        f"# {escape(content.title)}",
        f"**{escape(content.outcome)}** · {escape(content.subtitle)}",
        *(f"> {escape(warning)}" for warning in content.warnings),
        "## Key numbers",
        _table(("", "", ""), ((tile.label, tile.value, tile.detail) for tile in content.tiles)),
    ]
    if figures:
        parts.append("## Figures")
        parts += [f"![{escape(figure.description)}]({figures_folder}/{figure.name}.svg)" for figure in figures]
    if content.phases:
        rows = (("· " * line.depth + line.name, line.median, line.share, line.total) for line in content.phases)
        parts += [
            "## Time by phase",
            _table(("phase", "median", "share", "whole run"), rows, numbers=3),
            escape(content.phases_note),
        ]
    if content.config:
        parts += ["## Configuration", _table(("key", "value"), content.config)]
    if content.samples:
        parts += ["## Samples", *(_sample(sample) for sample in content.samples)]
    parts += ["## Events", _events(content)]
    parts += ["## Environment", _table(("", ""), content.environment)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """The text as it is, whatever Markdown or HTML it looks like, on one line."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", html.escape(flat, quote=False))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """A table whose last `numbers` columns are aligned to the right."""
    texts = len(header) - numbers
    lines = [header, ["---"] * texts + ["---:"] * numbers, *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _events(content: Content) -> str:
    rows = ((event.time, event.kind, event.step, event.text) for event in content.events)
    table = _table(("time", "event", "step", ""), rows)
    return table if not content.events_left_out else f"{content.events_left_out} earlier events left out.\n\n{table}"


def _sample(sample: dict[str, str]) -> str:
    return "\n".join(f"- {escape(key)}: {escape(value)}" for key, value in sample.items())
