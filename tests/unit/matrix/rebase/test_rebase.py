import datetime as dt
import io
import math

import pytest
from rich.console import Console

from grpo.errors import MatrixError
from grpo.matrix.rebase.rebase import rebased
from grpo.matrix.rebase.show import rebase_table
from tests.support.judged import judged, renamed
from tests.support.matrix import STACK, case, measured, published, unmeasured, verdict

TODAY = dt.date(2026, 11, 30)
NEW_STACK = {**STACK, "torch": "2.12.0+cu130"}
REFERENCE = measured(stack=STACK)


def turns(new_refit=20.0, old_refit=14.0, pairs=5, new_stack=NEW_STACK, **changes):
    old = [judged(f"o{at}", {"refit": old_refit}, started=2.0 * at + at % 2) for at in range(pairs)]
    new = [
        judged(f"n{at}", {"refit": new_refit}, started=2.0 * at + (at + 1) % 2, stack=new_stack, **changes)
        for at in range(pairs)
    ]
    return old, new


def test_the_new_runs_become_the_reference_and_the_anchors_stay():
    result = rebased(*turns(), case(), REFERENCE, today=TODAY, approved_by="somebody")
    assert result.change == "torch 2.11.0+cu130 -> 2.12.0+cu130"
    refit = next(one for one in result.ratios if one.metric == "timing/refit")
    assert math.isclose(refit.median, 20 / 14)
    assert refit.p == 1 / 32
    assert result.reference.values["timing/refit"].value == 20.0
    assert result.reference.values["timing/refit"].anchor == 14.0
    assert result.reference.source.stack.torch == "2.12.0+cu130"
    assert not result.provisional
    new_run = judged("x", {"refit": 20.0}, stack=NEW_STACK).evidence
    assert "not judged: stack" in verdict(new_run, reference=REFERENCE).sentence
    assert verdict(new_run, reference=result.reference).outcome == "pass"


def test_values_close_to_the_old_ones_are_the_new_runs_too():
    result = rebased(*turns(new_refit=14.05), case(), REFERENCE, today=TODAY)
    assert result.reference.values["timing/refit"].value == 14.05


def test_a_table_says_what_the_stack_did():
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(rebase_table(rebased(*turns(new_refit=15.0, pairs=3), case(), REFERENCE.model_copy(
        update={"source": REFERENCE.source.model_copy(update={"runs": ["a", "b", "c"]})}
    ), today=TODAY)))  # fmt: skip
    text = console.file.getvalue()
    assert "torch 2.11.0+cu130 -> 2.12.0+cu130: new over old" in text
    assert "1.071" in text
    assert "provisional" in text


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (turns(new_stack=STACK), "same stack"),
        (turns(commit="def"), "of the commits abc and def"),
        (turns(old_refit=20.0), "the old stack itself no longer measures its reference"),
        ((turns(pairs=4)[0], turns()[1]), "4 runs of the old stack and 5 of the new"),
        (turns(pairs=2), "needs 3"),
    ],
)
def test_what_would_hide_something_in_a_rebase_is_refused(sides, message):
    with pytest.raises(MatrixError, match=message):
        rebased(*sides, case(), REFERENCE, today=TODAY, approved_by="somebody")


def test_one_stack_after_the_other_is_not_interleaved():
    old, new = turns()
    late = [renamed(run, started=100.0 + at) for at, run in enumerate(new)]
    with pytest.raises(MatrixError, match="have to be interleaved"):
        rebased(old, late, case(), REFERENCE, today=TODAY, approved_by="somebody")


def test_a_large_change_needs_a_name_here_too():
    with pytest.raises(MatrixError, match="--approved-by"):
        rebased(*turns(), case(), REFERENCE, today=TODAY)


def test_without_a_measured_reference_the_new_runs_are_the_first():
    result = rebased(*turns(), case(), unmeasured(), today=TODAY)
    assert result.reference.values["timing/refit"].anchor is None
    with pytest.raises(MatrixError, match="published row"):
        rebased(*turns(), case(), published(), today=TODAY)
