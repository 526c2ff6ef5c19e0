"""What the matrix's report says, apart from how it looks: HTML and Markdown show the same tables."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo.matrix.history import SECONDS, Row, TestTime, last_verdicts
from grpo.matrix.load import Matrix
from grpo.matrix.schema import LAYERS, Case, Layer, Suite

SLOWEST = 15
State = str  # a key of WORDS
# In words and with a sign, so that nothing is said by colour alone.
WORDS: Mapping[State, tuple[str, str]] = {
    "pass": ("✓", "pass"),
    "fail": ("✗", "fail"),
    "faster": ("▲", "faster"),
    "not-judged": ("○", "not judged"),
    "never": ("·", "never ran"),
    "none": ("", ""),
}


@dataclass(frozen=True)
class Cell:
    """One case on one partition."""

    state: State
    sign: str
    words: str
    detail: str  # when, and why


@dataclass(frozen=True)
class Line:
    case: str
    about: str  # tier, cadence, what it takes
    quarantined: str  # until when and why, or nothing
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Group:
    """A layer, with the partitions that its cases are for."""

    layer: str
    partitions: Sequence[str]
    lines: Sequence[Line]


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    state: State


@dataclass(frozen=True)
class MatrixContent:
    """Everything that the report shows, as texts that are not yet escaped."""

    written: str
    groups: Sequence[Group]
    attention: Sequence[tuple[str, str, Cell, str]]  # case, partition, verdict, quarantine
    tiles: Sequence[Tile]
    slowest: Sequence[tuple[str, str, str]]  # seconds, test, case
    quarantine: Sequence[tuple[str, ...]]  # case, since, until, days left, reason, issue, owner
    never: Sequence[tuple[str, str, str]]  # case, stack, partition
    combinations: int  # that there are


def gather(matrix: Matrix, rows: Sequence[Row], tests: Sequence[TestTime], now: dt.datetime) -> MatrixContent:
    """Pure: the same data give the same page. `now` is in UTC."""
    last = last_verdicts(rows)
    groups = [group for layer in LAYERS if (group := _group(matrix, layer, last)).lines]
    never, combinations = _never(matrix, rows)
    return MatrixContent(
        written=now.strftime("%Y-%m-%d %H:%M UTC"),
        groups=groups,
        attention=_attention(groups),
        tiles=_tiles(matrix, groups),
        slowest=[
            (f"{one.seconds:.1f} s", one.name, one.case)
            for one in sorted(tests, key=lambda one: (-one.seconds, one.name))[:SLOWEST]
        ],
        quarantine=_quarantine(matrix, now.date()),
        never=never,
        combinations=combinations,
    )


def _group(matrix: Matrix, layer: Layer, last: Mapping[tuple[str, str], Row]) -> Group:
    cases = [case for case in matrix.all.values() if case.layer == layer]
    partitions = [name for name in matrix.partitions if any(name in case.partitions for case in cases)]
    return Group(layer, partitions, [_line(matrix, case, partitions, last) for case in cases])


def _attention(groups: Sequence[Group]) -> list[tuple[str, str, Cell, str]]:
    return [
        (line.case, partition, cell, line.quarantined)
        for group in groups
        for line in group.lines
        for partition, cell in zip(group.partitions, line.cells, strict=True)
        if cell.state in ("fail", "faster")
    ]


def _line(matrix: Matrix, case: Case | Suite, partitions: Sequence[str], last: Mapping[tuple[str, str], Row]) -> Line:
    held = matrix.quarantine.cases.get(case.id)
    gpus = f"{case.gpus} GPUs" if case.gpus > 1 else "1 GPU" if case.gpus else "CPU"
    return Line(
        case=case.id,
        about=f"{case.tier} · {case.cadence} · {gpus}",
        quarantined="" if held is None else f"quarantined until {held.until}: {held.reason}",
        cells=[_cell(case, name, last.get((case.id, name))) for name in partitions],
    )


def _cell(case: Case | Suite, partition: str, row: Row | None) -> Cell:
    if partition not in case.partitions:
        return Cell("none", *WORDS["none"], "")
    if row is None:
        return Cell("never", *WORDS["never"], "")
    state = row.outcome.replace(" ", "-")
    why = f" · {row.failure}" if row.failure else ""
    return Cell(state, *WORDS[state], f"{row.time[:10]}{why}")


def _tiles(matrix: Matrix, groups: Sequence[Group]) -> list[Tile]:
    cells = [cell.state for group in groups for line in group.lines for cell in line.cells]
    tiles = [Tile("cases", str(len(matrix.all)), "none")]
    tiles += [Tile(WORDS[state][1], str(cells.count(state)), state) for state in WORDS if state != "none"]
    return [*tiles, Tile("quarantined", str(len(matrix.quarantine.cases)), "none")]


def _quarantine(matrix: Matrix, today: dt.date) -> list[tuple[str, ...]]:
    return [
        (
            case,
            str(held.since),
            str(held.until),
            _days_words((held.until - today).days),
            held.reason,
            held.issue,
            held.owner,
        )
        for case, held in sorted(matrix.quarantine.cases.items(), key=lambda pair: pair[1].until)
    ]


def _days_words(days: int) -> str:
    return f"{days} days" if days >= 0 else f"over for {-days} days"


def _never(matrix: Matrix, rows: Sequence[Row]) -> tuple[list[tuple[str, str, str]], int]:
    ran = {(row.case, row.stack, row.partition) for row in rows}
    every = [
        (case.id, stack, partition)
        for case in matrix.all.values()
        for stack in case.stacks
        for partition in case.partitions
    ]
    return [one for one in every if one not in ran], len(every)


def training_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of cases that train: those of suites have the seconds of their tests alone."""
    return [row for row in rows if row.metric != SECONDS]
