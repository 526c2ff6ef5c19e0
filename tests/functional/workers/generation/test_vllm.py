"""The vLLM engine: the contract of every engine, and what is its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.workers.generation.vllm import VllmGenerator
from tests.support.generation import make_config
from tests.support.generator_contract import GeneratorContract

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]


class TestVllmGenerator(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[VllmGenerator]:
        config = make_config(folder, backend="vllm", generation={"stop_strings": ["A"]})
        engine = VllmGenerator(config, folder)
        yield engine
        engine.shutdown()
