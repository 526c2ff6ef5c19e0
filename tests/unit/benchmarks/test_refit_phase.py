import pytest

from benchmarks.refit import configured
from benchmarks.refit_phase import TimedEngine, available_bytes, page
from tests.support.rollouts import RecordingGenerator


@pytest.fixture(scope="module")
def config():
    return configured("tiny", ["cluster.gpus_per_node=1"])


def row(whole, **parts):
    moving = {"export": 0.01, "transfer": 0.0, "load": 0.02, "performance/refit_gib": 15.0}
    return {"whole": whole, **moving, **parts}


def test_each_half_is_listed_by_its_parts_and_held_against_its_goal(config):
    stays = [row(9.0), *[row(each, **{"wake weights": 0.1, "wake kv_cache": 0.05}) for each in (0.2, 0.3, 0.4)]]
    leaves = [row(20.0), *[row(each, offload=1.9, copy=1.8, release=0.1) for each in (2.1, 2.3, 2.2)]]
    text = page("x", {"stays": stays, "leaves": leaves, "optimizer_bytes": 54e9, "rounding_s": 0.01}, config)
    assert "| whole | 300.0 | 2200.0 |" in text
    assert "| release | 0.0 | 100.0 |" in text
    assert "stays: 3 rounds after the first, whole 200.0 - 400.0 ms." in text
    assert "Transfer of 16.11 GB: 30.0 ms; goal 35.3 ms." in text
    assert "Phase: 0.300 s; goal 0.5 s." in text
    assert "Offload of 54.0 GB: 1.900 s more, 1.90 x bytes / 54 GB/s; goal 1.2 x." in text


def test_what_is_known_after_one_half_is_a_page_too(config):
    text = page("x", {"stays": [row(1.0), row(0.2)], "left_out": "96.0 GB do not fit"}, config)
    assert "| whole | 200.0 |" in text
    assert "Offload" not in text
    assert "left_out: 96.0 GB do not fit" in text
    assert page("x", {}, config)


def test_waking_is_timed_by_what_wakes():
    engine = TimedEngine(RecordingGenerator())
    engine.sleep(2)
    engine.wake(["weights"])
    assert engine.seconds["wake weights"] >= 0
    assert engine.weight_version == engine._engine.weight_version


def test_host_memory_is_found():
    assert available_bytes() > 1 << 20
