"""The configuration chooses the engine, and whether it has a process of its own."""

from grpo.models.shipped import SHAPES
from grpo.workers.generation import factory
from grpo.workers.generation.factory import make_generator
from grpo.workers.generation.hf import HfGenerator
from tests.support.generation import make_config

FOLDER = SHAPES / "tiny-digits"


def test_in_process_is_the_engine_itself():
    assert isinstance(make_generator(make_config(FOLDER, random_weights=True), FOLDER), HfGenerator)


def test_ray_is_the_engine_in_its_own_process(monkeypatch):
    started = []
    monkeypatch.setattr(
        factory.EngineGroup, "start", lambda _config, path, _room, *, weights_from: started.append((path, weights_from))
    )
    config = make_config(FOLDER)
    over_ray = config.model_copy(update={"cluster": config.cluster.model_copy(update={"launcher": "ray"})})
    make_generator(over_ray, FOLDER)
    make_generator(over_ray, FOLDER, weights_from="refit")
    assert started == [(FOLDER, "folder"), (FOLDER, "refit")]
