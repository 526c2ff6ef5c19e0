"""A verdict for a pull request's summary."""

from collections.abc import Sequence

from grpo.matrix.judge.verdict import Comparison, Share, Verdict
from grpo.matrix.judge.words import metric_words, number, parts_words, per_cent, phase_words, signed, status_words
from grpo.matrix.show.table import limits, steps_words


def verdict_markdown(verdict: Verdict) -> str:
    """Heading, sentence and tables."""
    lines = [f"### {verdict.case} on {verdict.partition}: {verdict.outcome}", "", _cell(verdict.sentence), ""]
    if verdict.steps is not None:
        lines += [steps_words(verdict), ""]
    if verdict.comparisons:
        lines += _table(
            ("metric", "run", "reference", "difference", "band", "verdict"),
            [_compared(one) for one in verdict.comparisons],
        )
    if verdict.attribution:
        lines += _table(
            ("phase", "seconds", "run", "reference", "of which"),
            [_shared(one) for one in verdict.attribution],
        )
    if verdict.findings:
        lines += [*(f"- rule {one.rule}: {_cell(one.message)}" for one in verdict.findings), ""]
    return "\n".join(lines)


def _compared(one: Comparison) -> tuple[str, ...]:
    difference = f"{signed(one.difference)} ({per_cent(one.relative)})"
    run, band = f"{number(one.value)} {one.unit}", limits(one.lower, one.upper)
    return metric_words(one.metric), run, number(one.reference), difference, band, status_words(one)


def _shared(one: Share) -> tuple[str, ...]:
    return phase_words(one.phase), signed(one.seconds), number(one.value), number(one.reference), parts_words(one)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(map(_cell, line)) + " |" for line in lines), ""]


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
