"""A verdict on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo.matrix.judge.verdict import Outcome, Verdict
from grpo.matrix.judge.words import metric_words, number, parts_words, per_cent, phase_words, signed, status_words

STYLES: dict[Outcome, str] = {
    "pass": "bold green",
    "fail": "bold red",
    "faster": "bold cyan",
    "not judged": "bold yellow",
}


def verdict_table(verdict: Verdict) -> RenderableType:
    """The sentence first, then what it rests on."""
    heading = Text.assemble(f"{verdict.case} on {verdict.partition}: ", (verdict.sentence, STYLES[verdict.outcome]))
    parts: list[RenderableType] = [heading]
    if verdict.steps is not None:
        parts.append(Text(steps_words(verdict)))
    if verdict.comparisons:
        parts.append(_comparisons(verdict))
    if verdict.attribution:
        parts.append(_attribution(verdict))
    if verdict.bounds:
        parts.append(_bounds(verdict))
    parts += [Text(f"rule {one.rule}: {one.message}") for one in verdict.findings]
    return Group(*parts)


def steps_words(verdict: Verdict) -> str:
    """How the steps were used."""
    assert verdict.steps is not None
    steps = verdict.steps
    text = f"{steps.judged} steps judged, {steps.warmup} of warm-up, {steps.apart} with a checkpoint or validation"
    return text if steps.apart_total is None else f"{text} (median {number(steps.apart_total)} s)"


def limits(lower: float | None, upper: float | None) -> str:
    low = "" if lower is None else number(lower)
    high = "" if upper is None else number(upper)
    return f"{low} .. {high}" if low or high else ""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _comparisons(verdict: Verdict) -> Table:
    table = _table(
        f"against the {verdict.reference} reference", "", "run", "reference", "difference", "", "band", "verdict"
    )
    for one in verdict.comparisons:
        table.add_row(
            metric_words(one.metric), f"{number(one.value)} {one.unit}", number(one.reference), signed(one.difference),
            per_cent(one.relative), limits(one.lower, one.upper), status_words(one),
        )  # fmt: skip
    return table


def _attribution(verdict: Verdict) -> Table:
    table = _table("where the difference is", "phase", "seconds", "run", "reference", "of the difference", "of which")
    for share in verdict.attribution:
        part = "" if share.share is None else f"{100 * share.share:.0f} %"
        table.add_row(
            phase_words(share.phase), signed(share.seconds), number(share.value), number(share.reference), part,
            parts_words(share),
        )  # fmt: skip
    table.add_section()
    table.add_row("total", signed(sum(share.seconds for share in verdict.attribution)))
    return table


def _bounds(verdict: Verdict) -> Table:
    table = _table("bounds", "metric", "", "run", "bound", "")
    for one in verdict.bounds:
        value = "not measured" if one.value is None else number(one.value)
        table.add_row(
            one.metric, one.statistic, value, limits(one.lower, one.upper), "holds" if one.holds else "broken"
        )
    return table
