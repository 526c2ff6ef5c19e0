"""What of a reference moves (rule 10)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo.errors import MatrixError
from grpo.matrix.accept.merge import JudgedRun
from grpo.matrix.judge.bands import GATING_RUNS, SPREAD_RUNS, WIDEST_GATING, band_of, higher_is_worse
from grpo.matrix.judge.words import per_cent
from grpo.matrix.schema import Figure, Measured, Reference

MOVES_BEYOND = 1 / 3  # of the band
DRIFT = 0.10  # from the anchor, beyond which somebody has to approve

Change = Literal["first", "moves", "stays", "gone"]


@dataclass(frozen=True)
class Row:
    """One metric of the old and the new reference."""

    metric: str
    old: Figure | None
    new: Figure | None
    change: Change
    kept: Figure | None  # what the file will hold
    drift: float | None  # of the kept value from the anchor

    @property
    def difference(self) -> float | None:
        return None if self.old is None or self.new is None else self.new.value - self.old.value


@dataclass(frozen=True)
class Proposal:
    """The reference as it would be, and how it comes about."""

    rows: tuple[Row, ...]
    reference: Reference
    provisional: bool

    @property
    def moves(self) -> bool:
        return any(row.change != "stays" for row in self.rows)


def check_runs(runs: Sequence[JudgedRun]) -> None:
    """Raise MatrixError for too few runs, one given twice, and any that is more than merely faster or slower."""
    names = [run.evidence.run for run in runs]
    if len(set(names)) < len(names):
        raise MatrixError("a run is given twice: each counts once")
    if len(runs) < SPREAD_RUNS:
        raise MatrixError(
            f"{len(runs)} runs: a reference needs {SPREAD_RUNS} for a spread between them, {GATING_RUNS} to gate"
        )
    for run in runs:
        broken = [finding.message for finding in run.verdict.findings if finding.failure not in (None, "regression")]
        unusable = [finding.message for finding in run.verdict.findings if finding.rule in _UNUSABLE]
        if broken or unusable or not run.verdict.values:
            reason = next(iter([*broken, *unusable, run.verdict.sentence]))
            raise MatrixError(f"{run.path} cannot be part of a reference: {reason}")


_UNUSABLE = (6, 7, 12)  # without a failure class: unknown machine, still running, other lengths


def propose(
    old: Reference | None, new: Reference, *, replace_published: bool = False, every_value: bool = False
) -> Proposal:
    """The new reference, in which every value that is close to the old one stays (`every_value`: none does).

    Raises MatrixError: the old one is published, of another stack, or gates and the new one would not; a value drifts
    more than 10 % from its anchor and `approved_by` names nobody.
    """
    assert isinstance(new.source, Measured)
    before = _old_values(old, new.source, replace_published=replace_published)
    beyond = 0.0 if every_value else MOVES_BEYOND
    rows = tuple(_row(metric, before.get(metric), new, old, beyond) for metric in dict.fromkeys([*before, *new.values]))
    _check_drift(rows, new.source.approved_by)
    values = {row.metric: row.kept for row in rows if row.kept is not None}
    kept = Reference(schema_version=new.schema_version, source=new.source, values=values)
    return Proposal(rows, kept, provisional=len(new.source.runs) < GATING_RUNS)


def _old_values(old: Reference | None, new: Measured, *, replace_published: bool) -> dict[str, Figure]:
    """The values that the new ones are held against."""
    if old is None or old.source.kind == "none":
        return {}
    if old.source.kind == "published":
        if not replace_published:
            raise MatrixError(
                "the reference is a published row, which the project keeps for comparison: give --replace-published "
                "to put the measured one in its place"
            )
        return {}
    differing = stack_difference(old.source, new)
    if differing:
        raise MatrixError(
            f"the runs are of another stack ({differing}): `nox -s rebase -- OLD NEW` tells the two apart"
        )
    if len(old.source.runs) >= GATING_RUNS > len(new.runs):
        raise MatrixError(
            f"the reference gates, and {len(new.runs)} runs would make it provisional: it takes {GATING_RUNS}"
        )
    return dict(old.values)


def stack_difference(old: Measured, new: Measured) -> str:
    """`torch 2.10 -> 2.11`; empty where both are the same."""
    before, after = old.stack.model_dump(), new.stack.model_dump()
    changed = [f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    if old.image != new.image:
        changed.append(f"image {old.image} -> {new.image}")
    return ", ".join(changed)


def _row(
    metric: str, old: Figure | None, new_reference: Reference, old_reference: Reference | None, beyond: float
) -> Row:
    new = new_reference.values.get(metric)
    if new is None:
        return Row(metric, old, None, "gone", None, None)
    if old is None or old_reference is None:
        return Row(metric, None, new, "first", new, 0.0)
    anchor = old.value if old.anchor is None else old.anchor
    if beyond and abs(new.value - old.value) <= beyond * _width(metric, old_reference):
        return Row(metric, old, new, "stays", old, old.value / anchor - 1)
    if isinstance(old_reference.source, Measured) and len(old_reference.source.runs) < GATING_RUNS:
        # Too few runs to gate are no first word that later ones could drift from.
        return Row(metric, old, new, "moves", new, 0.0)
    kept = new.model_copy(update={"anchor": anchor})
    return Row(metric, old, new, "moves", kept, new.value / anchor - 1)


def _width(metric: str, reference: Reference) -> float:
    """The slow side of a band, in the metric's unit. Figures without a band, and too wide ones, count as 10 %."""
    band, value = band_of(metric, reference), reference.values[metric].value
    bound = band.upper if higher_is_worse(metric) else band.lower
    widest = WIDEST_GATING * value
    return widest if bound is None else min(abs(bound - value), widest)


def _check_drift(rows: Sequence[Row], approved_by: str | None) -> None:
    far = [row for row in rows if row.change == "moves" and row.drift is not None and abs(row.drift) > DRIFT]
    if far and approved_by is None:
        words = ", ".join(f"{row.metric} {per_cent(row.drift or 0.0)}" for row in far)
        raise MatrixError(f"more than 10 % from the first accepted value: {words}; name who approves: --approved-by")
