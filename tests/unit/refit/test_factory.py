import pytest

from grpo.config import load_config
from grpo.refit.endpoints import Settings
from grpo.refit.factory import refits, settings
from grpo.refit.local import LocalRefit
from grpo.refit.session import RefitSession
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.engine_start import Engines
from grpo.workers.policy.group import PolicyGroup
from tests.support.local_group import LocalGroup
from tests.support.refits import SmallEngine, SmallPolicy


class Rank:
    """As much of a `RankPolicy` as a group asks at its start."""

    def weight_version(self):
        return 0

    def residences(self):
        return {}


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
    assert isinstance(refits(configured(), SmallPolicy(), SmallEngine()), LocalRefit)
    policy = PolicyGroup(LocalGroup(1, lambda _: Rank()))
    engine = EngineGroup(Engines(LocalGroup(1, lambda _: SmallEngine().target()), 1))
    assert isinstance(refits(configured(), policy, engine), RefitSession)
    for odd in ((SmallPolicy(), engine), (policy, SmallEngine())):
        with pytest.raises(AssertionError, match="elsewhere"):
            refits(configured(), *odd)
