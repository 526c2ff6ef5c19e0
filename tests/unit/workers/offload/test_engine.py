import pytest

from grpo.placement.errors import PlacementError
from grpo.placement.resources import Resource
from grpo.workers.offload.engine import EngineResidence


def state(engine):
    found = engine.residences()
    return str(found[Resource.ENGINE_WEIGHTS]), str(found[Resource.ENGINE_KV_CACHE])


@pytest.mark.parametrize(("level", "weights"), [(1, "cpu"), (2, "absent")])
def test_asleep_it_can_do_nothing(level, weights):
    engine = EngineResidence()
    engine.need_all("generate")
    engine.fell_asleep(level)
    assert state(engine) == (weights, "absent")
    with pytest.raises(PlacementError, match=f"generate needs engine_weights on gpu, but it is on {weights}"):
        engine.need_all("generate")
    with pytest.raises(PlacementError, match="update_weights needs engine_weights"):
        engine.need_weights("update_weights")
    with pytest.raises(PlacementError, match="sleep needs engine_weights"):
        engine.fell_asleep(level)


def test_weights_that_were_saved_wake_with_the_cache_after_them():
    engine = EngineResidence()
    engine.fell_asleep(1)
    engine.woke(["weights"])
    engine.need_weights("update_weights")
    with pytest.raises(PlacementError, match="generate needs engine_kv_cache on gpu, but it is on absent"):
        engine.need_all("generate")
    engine.woke(["kv_cache"])
    engine.need_all("generate")
    engine.fell_asleep(1)
    engine.woke(["weights", "kv_cache"])
    assert state(engine) == ("gpu", "gpu")


def test_the_cache_does_not_wake_before_the_weights():
    engine = EngineResidence()
    engine.fell_asleep(1)
    with pytest.raises(PlacementError, match="engine_kv_cache wakes last, but engine_weights is on cpu"):
        engine.woke(["kv_cache", "weights"])


def test_weights_that_were_given_up_need_a_refit_before_the_cache_wakes():
    engine = EngineResidence()
    engine.fell_asleep(2)
    engine.woke(["weights"])
    with pytest.raises(
        PlacementError, match="engine_kv_cache wakes last, but engine_weights is without values until a refit"
    ):
        engine.woke(["kv_cache"])
    engine.updated()
    engine.woke(["kv_cache"])
    assert state(engine) == ("gpu", "gpu")


def test_there_are_two_levels():
    with pytest.raises(PlacementError, match="level 1 or 2, not 0"):
        EngineResidence().fell_asleep(0)
