"""The matrix for a pull request's summary: what fails first, then counts by layer, then all of it folded away."""

from collections.abc import Iterable, Sequence

from grpo.matrix.report.content import Cell, MatrixContent
from grpo.telemetry.markdown import escape


def render_markdown(content: MatrixContent) -> str:
    bad = [(case, partition, _words(cell), held) for case, partition, cell, held in content.attention]
    parts = [
        f"## The test matrix, {content.written}",
        " · ".join(f"{tile.value} {tile.label}" for tile in content.tiles),
        _table(("case", "partition", "verdict", ""), bad) if bad else "Nothing fails.",
    ]
    if content.quarantine:
        parts += [
            "### Quarantine",
            _table(("case", "since", "until", "left", "reason", "issue", "owner"), content.quarantine),
        ]
    if content.slowest:
        parts += [_folded("Slowest tests", _table(("seconds", "test", "case"), content.slowest))]
    for group in content.groups:
        rows = [(line.case, line.about, *map(_words, line.cells)) for line in group.lines]
        parts += [_folded(f"Cases of the {group.layer} layer", _table(("case", "", *group.partitions), rows))]
    if content.never:
        title = f"{len(content.never)} of {content.combinations} combinations of case, stack and partition never ran"
        parts += [_folded(title, _table(("case", "stack", "partition"), content.never))]
    return "\n\n".join(parts) + "\n"


def _words(cell: Cell) -> str:
    return " ".join(part for part in (cell.sign, cell.words, cell.detail) if part)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
