"""Whole runs over ranks that are killed go on as though they had not been; see `tests.support.ray_kill_harness`."""

import random

import pytest

from grpo.telemetry.reader import read_run
from tests.functional.checkpoint.test_ranks import assert_close
from tests.support.kill_harness import OPTIONS
from tests.support.quick_run import run_quick
from tests.support.ray_kill_harness import Kill, kill_again_and_again, killed_run

pytestmark = pytest.mark.xdist_group("ray")
VARIANTS = {
    "dtensor": (),
    "in the background": ("checkpointing.async_save=true",),
    "megatron": ("policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true"),
}


@pytest.mark.timeout(900)
def test_one_rank_then_all_then_the_driver(tmp_path):
    kills = [Kill("one", 60, rank=1), Kill("all", 0.3), Kill("driver", 45)]
    deaths = list(killed_run(tmp_path / "run", kills))
    assert [death.kill for death in deaths] == kills
    assert deaths[-1].step > 0
    steps = deaths[-1].step + 1
    for name in ("run", "whole"):
        run_quick(tmp_path / name, *OPTIONS, f"grpo.max_num_steps={steps}")
    assert_close(tmp_path / "run", tmp_path / "whole", steps)
    assert any(event["kind"] == "resumed" for event in read_run(tmp_path / "run").events)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", VARIANTS)
def test_hundreds_of_random_instants(tmp_path, variant):
    seed = random.randrange(2**32)  # told by the harness
    assert len(kill_again_and_again(tmp_path, 70, seed, VARIANTS[variant])) == 70
