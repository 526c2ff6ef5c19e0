"""A proposed reference: old, new, difference, spread, and what moves."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo.matrix.accept.merge import JudgedRun, node_sets
from grpo.matrix.accept.propose import Proposal, Row
from grpo.matrix.judge.bands import GATING_RUNS
from grpo.matrix.judge.evidence import TOTAL
from grpo.matrix.judge.words import metric_words, number, per_cent, signed

_WORDS = {"first": "new", "moves": "moves", "stays": "stays (within a third of the band)", "gone": "no longer measured"}


def proposal_table(proposal: Proposal, runs: Sequence[JudgedRun]) -> RenderableType:
    """The table, the node sets below it, and whether the result gates."""
    table = Table(title=f"reference of {len(runs)} runs", title_justify="left", header_style="bold")
    for column in ("", "old", "new", "difference", "", "spread", "from the anchor", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    for row in proposal.rows:
        table.add_row(*row_cells(row))
    lines = [_node_set_words(nodes, of_set) for nodes, of_set in node_sets(runs).items()]
    if proposal.provisional:
        lines.append(f"provisional: {len(runs)} runs, and {GATING_RUNS} are needed to gate")
    return Group(table, Text("\n".join(lines)))


def row_cells(row: Row) -> tuple[str, ...]:
    """One row as texts."""
    old = "" if row.old is None else number(row.old.value)
    new = "" if row.new is None else number(row.new.value)
    difference = relative = ""
    if row.difference is not None and row.old is not None:
        difference, relative = signed(row.difference), per_cent(row.difference / row.old.value)
    spread = "" if row.new is None or row.new.spread is None else f"{100 * row.new.spread:.2g} %"
    drift = "" if row.drift is None or row.change == "first" else per_cent(row.drift)
    return metric_words(row.metric), old, new, difference, relative, spread, drift, _WORDS[row.change]


def _node_set_words(nodes: Sequence[str], runs: Sequence[JudgedRun]) -> str:
    totals = ", ".join(number(run.verdict.values[TOTAL]) for run in runs if TOTAL in run.verdict.values)
    return f"on {', '.join(nodes) or 'unknown nodes'}: {totals} s ({len(runs)} runs)"
