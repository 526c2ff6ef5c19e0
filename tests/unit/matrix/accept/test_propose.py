import datetime as dt
import math

import pytest

from grpo.errors import MatrixError
from grpo.matrix.accept.merge import merge
from grpo.matrix.accept.propose import check_runs, propose
from grpo.matrix.judge.bands import band_of
from tests.support.judged import judged
from tests.support.matrix import STACK, case, measured, published, unmeasured, verdict

TODAY = dt.date(2026, 11, 30)


def new(refit, *, runs=5, approved_by=None, **changes):
    judged_runs = [judged(f"r{at}", {"refit": refit}, **changes) for at in range(runs)]
    return merge(judged_runs, case(), today=TODAY, approved_by=approved_by)


def old(**changes):
    return measured(stack=STACK, **changes)


def row(proposal, metric="timing/refit"):
    return next(one for one in proposal.rows if one.metric == metric)


def test_values_move_only_beyond_a_third_of_the_band():
    # The band of 14 s is max(3 %, 4 x 0.5 %) = 0.42 s, a third of it 0.14 s.
    stays, moves = propose(old(), new(14.139)), propose(old(), new(14.141))
    assert (row(stays).change, row(stays).kept) == ("stays", old().values["timing/refit"])
    assert row(moves).change == "moves"
    assert row(moves).kept.value == 14.141
    assert moves.reference.values["timing/generation"] == old().values["timing/generation"]


def test_nothing_new_and_nothing_moved_is_no_change():
    before = new(14.0)
    proposal = propose(before, new(14.1))
    assert not proposal.moves
    assert proposal.reference.values == before.values


def test_the_first_value_stays_the_anchor():
    first = propose(unmeasured(), new(14.0))
    assert row(first).change == "first"
    assert row(first).kept.anchor is None
    second = propose(first.reference, new(14.6))
    assert row(second).kept.anchor == 14.0
    third = propose(second.reference, new(15.2))
    assert row(third).kept.anchor == 14.0
    assert math.isclose(row(third).drift, 15.2 / 14.0 - 1)


@pytest.mark.parametrize("refit", [15.5, 12.5])
def test_a_drift_beyond_ten_per_cent_needs_a_name_however_small_the_steps(refit):
    middle = propose(old(), new((14.0 + refit) / 2)).reference
    with pytest.raises(MatrixError, match=r"timing/refit.*--approved-by"):
        propose(middle, new(refit))
    approved = propose(middle, new(refit, approved_by="somebody"))
    assert approved.reference.source.approved_by == "somebody"


def test_a_provisional_reference_is_no_anchor():
    provisional = propose(unmeasured(), new(14.0, runs=3))
    assert provisional.provisional
    gating = propose(provisional.reference, new(18.0))
    assert not gating.provisional
    assert (row(gating).change, row(gating).kept.value, row(gating).kept.anchor) == ("moves", 18.0, None)


def test_too_few_runs_are_refused_and_three_do_not_gate():
    for count in (1, 2):
        with pytest.raises(MatrixError, match=r"needs 3 .* 5 to gate"):
            check_runs([judged(f"r{at}") for at in range(count)])
    check_runs([judged(f"r{at}") for at in range(3)])
    assert propose(None, new(14.0, runs=3)).provisional
    assert not propose(None, new(14.0, runs=5)).provisional
    with pytest.raises(MatrixError, match="it takes 5"):
        propose(old(), new(14.0, runs=4))


def test_a_run_counts_once():
    with pytest.raises(MatrixError, match="given twice"):
        check_runs([judged("a"), judged("a"), judged("b")])


@pytest.mark.parametrize("changes", [{"train/loss": math.nan}, {"train/grad_norm": 0.0}, {"train/reward": None}])
def test_a_wrong_run_makes_no_reference(changes):
    with pytest.raises(MatrixError, match="runs/c cannot be part of a reference"):
        check_runs([judged("a"), judged("b"), judged("c", **changes)])


def test_slower_runs_can_be_accepted_knowingly():
    slow = [judged(f"r{at}", {"refit": 20.0}) for at in range(5)]
    assert all(run.verdict.outcome == "fail" for run in slow)
    check_runs(slow)


def test_a_published_row_gives_way_only_when_told_to():
    with pytest.raises(MatrixError, match="--replace-published"):
        propose(published(), new(14.0))
    proposal = propose(published(), new(14.0), replace_published=True)
    assert row(proposal).kept.value == 14.0


def test_another_stack_is_not_accepted_but_rebased():
    with pytest.raises(MatrixError, match=r"torch 2.11.0.* -> 2.12.*nox -s rebase"):
        propose(old(), new(14.0, stack={**STACK, "torch": "2.12"}))


def test_the_accepted_reference_judges_its_own_runs_as_passed():
    reference = propose(None, new(20.0)).reference
    assert verdict(judged("x", {"refit": 20.0}).evidence, reference=reference).outcome == "pass"
    assert verdict(judged("x", {"refit": 20.7}).evidence, reference=reference).outcome == "fail"
    assert band_of("timing/refit", reference).gates
