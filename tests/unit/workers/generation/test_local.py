"""The configuration chooses the engine."""

from grpo.models.shipped import SHAPES
from grpo.workers.generation import local
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.generation.local import make_local_generator
from tests.support.generation import make_config

FOLDER = SHAPES / "tiny-digits"


def test_hf_is_the_transformers_engine():
    assert isinstance(make_local_generator(make_config(FOLDER, random_weights=True), FOLDER), HfGenerator)


def test_vllm_is_the_vllm_engine(monkeypatch):
    started = []
    monkeypatch.setattr(
        local, "VllmGenerator", lambda _config, path, *, weights_from: started.append((path, weights_from))
    )
    make_local_generator(make_config(FOLDER, backend="vllm"), FOLDER)
    make_local_generator(make_config(FOLDER, backend="vllm"), FOLDER, weights_from="refit")
    assert started == [(FOLDER, "folder"), (FOLDER, "refit")]
