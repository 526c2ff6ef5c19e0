"""Engines in a process of their own: the contract of every engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.errors import GenerationError
from grpo.workers.generation.factory import make_generator
from grpo.workers.generation.remote import RemoteGenerator
from tests.support.generation import make_config
from tests.support.generator_contract import GeneratorContract

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]


def remote_config(folder: Path, backend: str):
    config = make_config(folder, backend=backend, generation={"stop_strings": ["A"]})
    return config.model_copy(
        update={"cluster": config.cluster.model_copy(update={"launcher": "ray", "worker_timeout_s": 240.0})}
    )


class TestRemoteHf(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[RemoteGenerator]:
        engine = make_generator(remote_config(folder, "hf"), folder)
        assert isinstance(engine, RemoteGenerator)
        yield engine
        engine.shutdown()
        engine.shutdown()


class TestRemoteVllm(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[RemoteGenerator]:
        engine = make_generator(remote_config(folder, "vllm"), folder)
        yield engine
        engine.shutdown()


def test_an_engine_that_does_not_start_raises_its_own_error(tmp_path):
    config = remote_config(tmp_path, "vllm")
    options = config.policy.generation.vllm_cfg.model_copy(update={"tensor_parallel_size": 2})
    generation = config.policy.generation.model_copy(update={"vllm_cfg": options})
    policy = config.policy.model_copy(update={"generation": generation})
    with pytest.raises(GenerationError, match="tensor_parallel_size=2"):
        make_generator(config.model_copy(update={"policy": policy}), tmp_path)
