"""What the vLLM engine does without vLLM: its start's refusals and the seeds of its requests."""

import pytest

from grpo.errors import GenerationError
from grpo.workers.generation import vllm_compat
from grpo.workers.generation.vllm import VllmGenerator, request_seeds
from tests.support.generation import make_config


def test_completions_of_a_prompt_get_seeds_of_their_own():
    seeds = [request_seeds(seed, 64) for seed in (0, 1, 1 + 2**32, 2**64 - 1)]
    assert len({seed for each in seeds for seed in each}) == 256
    assert len({seed % 2**32 for each in seeds for seed in each}) == 256
    assert all(0 <= seed < 2**63 for each in seeds for seed in each)
    assert request_seeds(1, 64) == seeds[1]


def test_more_than_one_device_is_refused(tmp_path):
    config = make_config(tmp_path, backend="vllm", generation={"vllm_cfg": {"tensor_parallel_size": 2}})
    with pytest.raises(GenerationError, match="tensor_parallel_size=2"):
        VllmGenerator(config, tmp_path)


def test_without_vllm_the_error_names_the_extras(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_compat, "installed_builds", dict)
    with pytest.raises(GenerationError, match=r"grpo-matrix\[vllm\].*grpo-matrix\[cpu\].*backend=hf"):
        VllmGenerator(make_config(tmp_path, backend="vllm"), tmp_path)
