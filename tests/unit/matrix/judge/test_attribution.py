from grpo.matrix.judge.attribution import attribute
from tests.support.matrix import published


def test_largest_first_whatever_its_sign_and_other_is_the_rest():
    values = {"timing/total": 140.0, "timing/generation": 60.0, "timing/refit": 20.0, "timing/rewards": 9.0}
    shares = attribute(values, published())
    assert [(share.phase, share.seconds) for share in shares] == [("generation", -24), ("other", 11), ("refit", 6)]
    assert [share.share for share in shares] == [24 / 7, -11 / 7, -6 / 7]


def test_a_run_says_what_its_phases_and_the_rest_are_made_of():
    values = {
        "timing/total": 160.0, "timing/refit": 20.0, "timing/refit/transfer": 4.0, "timing/refit/wake": 12.0,
        "timing/generation": 84.0, "timing/rewards": 9.0, "timing/data": 0.0, "timing/other": 2.0,
    }  # fmt: skip
    parts = {share.phase: share.parts for share in attribute(values, published())}
    assert parts["refit"] == (("wake", 12.0), ("transfer", 4.0))
    assert parts["other"] == (("rewards", 9.0), ("no phase", 2.0))
    assert parts["generation"] == ()


def test_nothing_to_divide():
    assert attribute({"timing/refit": 1.0}, published()) == ()
    same = attribute({"timing/total": 147.0}, published())
    assert [(share.phase, share.seconds, share.share) for share in same] == [("other", 0, None)]
