import pytest

from grpo.config import load_config
from grpo.refit.endpoints import Settings
from grpo.refit.factory import refits, settings
from grpo.refit.local import LocalRefit
from grpo.refit.session import RefitSession
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.engine_start import Engines
from tests.support.local_group import LocalGroup
from tests.support.refits import SmallEngine, SmallPolicy


def configured(*overrides):
    return load_config("tiny", list(overrides)).config


def test_every_key_reaches_both_sides():
    keys = ["policy.generation.refit.bucket_bytes=4096", "policy.generation.refit.checksum=full"]
    assert settings(configured(*keys)) == Settings(4096, "full", deadline_s=1796.0, on_gpu=False)
    assert settings(configured("cluster.gpus_per_node=1", "policy.precision=bfloat16")).on_gpu


@pytest.mark.parametrize(("timeout_s", "deadline_s"), [(1.0, 0.8), (10.0, 8.0), (100.0, 96.0)])
def test_who_waits_gives_up_before_the_call_ends(timeout_s, deadline_s):
    assert settings(configured(f"cluster.worker_timeout_s={timeout_s}")).deadline_s == pytest.approx(deadline_s)


def test_an_engine_in_this_process_is_filled_directly_and_one_elsewhere_through_its_ranks():
    with refits(configured(), SmallPolicy(), SmallEngine()) as refit:
        assert isinstance(refit, LocalRefit)
    group = EngineGroup(Engines(LocalGroup(1, lambda _: SmallEngine().target()), 1))
    with refits(configured(), SmallPolicy(), group) as refit:
        assert isinstance(refit, RefitSession)
