"""A rebase on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo.matrix.judge.bands import GATING_RUNS
from grpo.matrix.judge.words import metric_words
from grpo.matrix.rebase.rebase import Rebased
from grpo.matrix.show.proposal import row_cells


def rebase_table(result: Rebased) -> RenderableType:
    """What the stack did, by pairs, and the values that follow."""
    ratios = Table(title=f"{result.change}: new over old", title_justify="left", header_style="bold")
    for column in ("", "median ratio", "pairs", "slower: p"):
        ratios.add_column(column, justify="left" if column == "" else "right")
    for one in result.ratios:
        ratios.add_row(metric_words(one.metric), f"{one.median:.3f}", str(len(one.ratios)), f"{one.p:.3f}")
    values = Table(title="proposed reference", title_justify="left", header_style="bold")
    for column in ("", "old", "new", "difference", "", "spread", "from the anchor", ""):
        values.add_column(column, justify="left" if column == "" else "right")
    for row in result.rows:
        values.add_row(*row_cells(row))
    few = f"provisional: fewer than {GATING_RUNS} runs of the new stack" if result.provisional else ""
    return Group(ratios, values, Text(few)) if few else Group(ratios, values)
