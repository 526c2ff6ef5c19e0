import pytest

from grpo.refit.endpoints import RefitSource
from grpo.refit.errors import RefitError
from grpo.refit.manifest import Manifest
from tests.support.refits import SHAPES, SmallEngine, SmallPolicy, settings


def test_a_rank_that_nobody_hears_takes_part_and_keeps_nothing():
    policy = SmallPolicy()
    source = RefitSource(policy)
    manifest, _ = source.refit_describe(settings())
    assert list(manifest.weights) == list(SHAPES)
    assert source.refit_open("broadcast", 0, "127.0.0.1") == []
    source.refit_join()
    assert source.refit_send(1) is None
    assert policy.exports == 1


def test_an_engine_names_itself_and_both_sides_when_it_refuses():
    target = SmallEngine().target("the engine of this test")
    manifest = Manifest.of(SmallPolicy({**SHAPES, "big": (1, 2)}).describe_weights(), 100)
    told = r"policy and the engine of this test .*the policy sends big \[1, 2\] float32"
    with pytest.raises(RefitError, match=told):
        target.refit_accept(manifest, settings())
