from types import SimpleNamespace

import pytest

from benchmarks.refit import configured
from benchmarks.refit_phase import MeasuredRank, TimedEngine, available_bytes, page
from grpo.placement.resources import Resource
from tests.support.rollouts import RecordingGenerator


@pytest.fixture(scope="module")
def config():
    return configured("tiny", ["cluster.gpus_per_node=1"])


def row(whole, **parts):
    moving = {"export": 0.01, "transfer": 0.0, "load": 0.02, "performance/refit_gib": 15.0}
    return {"whole": whole, **moving, **parts}


def test_each_half_is_listed_by_its_parts_and_held_against_its_goal(config):
    stays = [row(9.0), *[row(each, **{"wake weights": 0.1, "wake kv_cache": 0.05}) for each in (0.2, 0.3, 0.4)]]
    moved = {"offload": 1.9, "copy": 1.8, "release": 0.1, "onload": 2.0}
    leaves = [row(20.0, copy=10.0), *[row(each, **moved) for each in (2.1, 2.3, 2.2)]]
    text = page("x", {"stays": stays, "leaves": leaves, "optimizer_bytes": 54e9, "rounding_s": 0.01}, config)
    assert "| whole | 300.0 | 2200.0 |" in text
    assert "| release | 0.0 | 100.0 |" in text
    assert "stays: 3 rounds after the first, whole 200.0 - 400.0 ms." in text
    assert "Transfer of 16.11 GB: 30.0 ms; goal 35.3 ms." in text
    assert "Phase: 0.300 s; goal 0.5 s." in text
    assert "Offload of 54.0 GB: 1.900 s more, 1.90 x bytes / 54 GB/s; goal 1.2 x." in text
    assert "Copied to the host: 1.800 s, 30.0 GB/s." in text
    assert "Back, with its memory allocated anew: 2.000 s, 27.0 GB/s." in text
    assert "The first time, with page-locked memory made: 10.000 s, 5.4 GB/s." in text


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


def test_a_round_begins_as_after_an_update():
    """Else what the host has a copy of would be freed without one."""
    changed = []
    memory = SimpleNamespace(offload=None, drop=None, release=None)
    resources = SimpleNamespace(memory=memory, changed=lambda *found: changed.extend(found))
    MeasuredRank(SimpleNamespace(_policy=SimpleNamespace(resources=resources))).updated()
    assert Resource.OPTIMIZER_STATE in changed


def test_host_memory_is_found():
    assert available_bytes() > 1 << 20
