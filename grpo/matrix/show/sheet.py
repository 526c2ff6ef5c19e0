"""Sentences and tables that read the same on a terminal and in a pull request's summary."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Grid:
    """One table; the first column is text, the others are figures unless `texts` says otherwise."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    texts: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Sheet:
    """The heading says the result; lines and tables say what it rests on."""

    heading: str
    lines: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    notes: Sequence[str] = ()  # below the tables


def sheet_table(sheet: Sheet) -> RenderableType:
    """For a terminal."""
    parts: list[RenderableType] = [Text(sheet.heading, style="bold"), *map(Text, sheet.lines)]
    for grid in sheet.grids:
        table = Table(title=grid.title, title_justify="left", header_style="bold")
        for at, name in enumerate(grid.header):
            table.add_column(name, justify="left" if at in grid.texts else "right")
        for row in grid.rows:
            table.add_row(*row)
        parts.append(table)
    return Group(*parts, *map(Text, sheet.notes))


def sheet_markdown(sheet: Sheet) -> str:
    """For a pull request."""
    lines = [f"### {_cell(sheet.heading)}", "", *_paragraph(sheet.lines)]
    for grid in sheet.grids:
        rule = ["---" if at in grid.texts else "---:" for at in range(len(grid.header))]
        lines += [f"**{_cell(grid.title)}**", ""] if grid.title else []
        lines += ["| " + " | ".join(map(_cell, line)) + " |" for line in (grid.header, rule, *grid.rows)]
        lines.append("")
    return "\n".join([*lines, *_paragraph(sheet.notes)])


def _paragraph(lines: Sequence[str]) -> list[str]:
    return [*(f"- {_cell(line)}" for line in lines), ""] if lines else []


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
