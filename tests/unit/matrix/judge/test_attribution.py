from grpo.matrix.judge.attribution import attribute
from tests.support.matrix import published


def test_largest_first_whatever_its_sign_and_other_is_the_rest():
    values = {"timing/total": 140.0, "timing/generation": 60.0, "timing/refit": 20.0, "timing/rewards": 9.0}
    shares = attribute(values, published())
    assert [(share.phase, share.seconds) for share in shares] == [("generation", -24), ("other", 11), ("refit", 6)]
    assert [share.share for share in shares] == [24 / 7, -11 / 7, -6 / 7]


def test_nothing_to_divide():
    assert attribute({"timing/refit": 1.0}, published()) == ()
    same = attribute({"timing/total": 147.0}, published())
    assert [(share.phase, share.seconds, share.share) for share in same] == [("other", 0, None)]
