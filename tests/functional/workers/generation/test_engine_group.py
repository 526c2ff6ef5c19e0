"""Engines in processes of their own, several replicas or one of several ranks: the contract of every engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.config.schema import Config
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.factory import make_generator
from grpo.workers.generation.local import make_local_generator
from tests.support.generation import make_config
from tests.support.generator_contract import PROMPTS, GeneratorContract, ids, plain

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("shared_ray"),
]


def engine_config(folder: Path, backend: str, *, ranks: int, size: int = 1) -> Config:
    config = make_config(
        folder, backend=backend, generation={"stop_strings": ["A"], "vllm_cfg": {"tensor_parallel_size": size}}
    )
    cluster = {"launcher": "ray", "worker_timeout_s": 240.0, "cpu_engine_ranks": ranks}
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=cluster)})


class TestTwoReplicas(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[EngineGroup]:
        engines = make_generator(engine_config(folder, "hf", ranks=2), folder)
        assert isinstance(engines, EngineGroup)
        yield engines
        engines.shutdown()
        engines.shutdown()

    @pytest.mark.parametrize(("prompts", "completions"), [(PROMPTS, 3), (PROMPTS[:1], 5), (PROMPTS[:1], 1), ([], 2)])
    def test_what_is_sampled_is_what_one_engine_samples(self, engine, folder, prompts, completions):
        seeds = list(range(7, 7 + len(prompts)))
        alone = make_local_generator(engine_config(folder, "hf", ranks=1), folder)
        expected = alone.generate(prompts, completions, plain(9), seeds)
        assert ids(engine.generate(prompts, completions, plain(9), seeds)) == ids(expected)


class TestTwoRanksOfVllm(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[EngineGroup]:
        engines = make_generator(engine_config(folder, "vllm", ranks=2, size=2), folder)
        yield engines
        engines.shutdown()
