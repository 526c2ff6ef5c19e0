"""Diagnoses as sentences and tables."""

from collections.abc import Sequence

from grpo.matrix.diagnose.diagnose import Diagnosis, PhaseState
from grpo.matrix.judge.words import number, phase_words, signed
from grpo.matrix.show.sheet import Grid, Sheet

_MACHINE = {
    "machine": "machine: the canary is below the partition's rates",
    "software": "software",
    "unknown": "machine or software: not known",
}


def diagnosis_sheet(one: Diagnosis) -> Sheet:
    """What is slow first, then machine or software, then the causes that this configuration allows."""
    lines = [f"{_MACHINE[one.machine]}: {problem}" for problem in one.machine_words] or [_MACHINE[one.machine]]
    grid = Grid(
        "where the step's time is",
        ("", "run", "of the step", "reference", "difference", "ratio", "slow", "of which"),
        [_cells(phase) for phase in one.phases],
        texts=(0, 6, 7),
    )
    notes = [
        f"{phase_words(phase.phase)}: {cause.why}; try: {cause.remedy} (from: {cause.source})"
        for phase in one.phases
        for cause in phase.causes
    ]
    return Sheet(f"{one.name}: {one.sentence}", [*lines, *one.patterns], [grid], notes)


def _cells(phase: PhaseState) -> tuple[str, ...]:
    return (
        phase_words(phase.phase),
        number(phase.value),
        f"{100 * phase.of_total:.0f} %",
        "" if phase.reference is None else number(phase.reference),
        "" if phase.seconds is None else signed(phase.seconds),
        "" if phase.ratio is None else f"{phase.ratio:.2f}x",
        "slow" if phase.slow and phase.reference is not None else "",
        phase.detail,
    )


def side_by_side(diagnoses: Sequence[Diagnosis]) -> Sheet:
    """The same phase of several runs: whether what is slow in one is slow in the others."""
    phases = list(dict.fromkeys(phase.phase for one in diagnoses for phase in one.phases))
    table = {one.name: {phase.phase: phase for phase in one.phases} for one in diagnoses}
    rows, sentences = [], []
    for name in phases:
        found = {run: states[name] for run, states in table.items() if name in states}
        rows.append((phase_words(name), *(_ratio(found.get(run)) for run in table)))
        if any(state.slow for state in found.values()):
            sentences.append(
                f"{phase_words(name)} is "
                + " and ".join(f"{_ratio(state)} in {run}" for run, state in found.items() if state.ratio is not None)
            )
    return Sheet("side by side", sentences, [Grid("", ("", *table), rows)])


def _ratio(state: PhaseState | None) -> str:
    if state is None or state.seconds is None:
        return ""
    return f"{'' if state.ratio is None else f'{state.ratio:.2f}x'} ({signed(state.seconds)} s)".strip()
