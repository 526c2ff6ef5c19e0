"""What an engine's rank does in its process with what it is sent."""

import pytest
import torch

from grpo.errors import GenerationError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import Residence, Resource
from grpo.workers.generation.engine_rank import EngineRank, Refusal, StreamRank
from grpo.workers.generation.shares import Part
from grpo.workers.groups.worker_group import InProcessGroup
from grpo.workers.protocol import GroupRequest
from tests.support.generation import greedy, load_model, make_config, weights_of, write_model
from tests.support.generator_contract import PROMPTS, ids, plain
from tests.support.refits import refit_into

LIMIT = 20.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return write_model(base / "a", seed=1), write_model(base / "b", seed=2)


def refit(rank, folder, version):
    refit_into(Alone(rank), weights_of(folder), version)


class Alone:
    """A rank of this process as all there is of an engine."""

    def __init__(self, rank):
        self.workers = InProcessGroup(lambda: rank)

    def residences(self):
        return {Resource.ENGINE_WEIGHTS: Residence.GPU}

    def updated(self, version):
        pass


def test_it_updates_generates_and_refuses(folders):
    rank = EngineRank(make_config(folders[0]), folders[0])
    refit(rank, folders[1], 5)
    ((completion,),) = rank.generate(PROMPTS, 1, plain(6, temperature=0.0), [0] * 4, [Part(0, range(1))])
    assert completion.token_ids == greedy(load_model(folders[1], dtype=torch.float32), PROMPTS[0], 6)
    assert completion.weight_version == 5
    refused = rank.generate([[]], 1, plain(2), [0], [Part(0, range(1))])
    assert isinstance(refused, Refusal)
    rank.sleep(1)
    with pytest.raises(PlacementError, match="generate needs engine_weights"):
        rank.generate(PROMPTS, 1, plain(6), [0] * 4, [Part(0, range(1))])
    rank.wake(("weights", "kv_cache"))
    rank.generate(PROMPTS, 1, plain(6), [0] * 4, [Part(0, range(1))])
    rank.refit_close()
    rank.shutdown()


def test_parts_of_a_prompts_completions_are_those_of_the_whole(folders):
    rank, seeds = EngineRank(make_config(folders[0]), folders[0]), [1, 2, 3, 4]
    every = [Part(prompt, range(5)) for prompt in range(4)]
    whole = rank.generate(PROMPTS, 5, plain(7), seeds, every)
    parts = [Part(1, range(3, 5)), Part(3, range(1)), Part(0, range(2, 4)), Part(3, range(1, 5))]
    for part, group in zip(parts, rank.generate(PROMPTS, 5, plain(7), seeds, parts), strict=True):
        assert ids([group]) == ids([whole[part.prompt][part.completions.start : part.completions.stop]])


@pytest.mark.parametrize("kind", [EngineRank, StreamRank])
def test_only_the_first_rank_of_an_engine_answers(folders, monkeypatch, kind):
    """Of an engine whose ranks have found each other: here one that thinks it is the second."""
    monkeypatch.setenv("RANK", "1")
    rank = kind(make_config(folders[0]), folders[0])
    if kind is EngineRank:
        assert rank.generate(PROMPTS, 1, plain(2), [0] * 4, [Part(0, range(1))]) is None
        assert isinstance(rank.generate([[]], 1, plain(2), [0], [Part(0, range(1))]), Refusal)
    else:
        rank.submit("a", [GroupRequest(1, (1, 2), 3)], 2, plain(2))
        assert rank.finished("a", LIMIT).groups == []
    rank.shutdown()


def test_a_stream_samples_with_what_a_refit_has_brought(folders):
    rank = StreamRank(make_config(folders[0]), folders[0])
    refit(rank, folders[1], 7)
    rank.submit("a", [GroupRequest(4, tuple(PROMPTS[0]), 3)], 2, plain(3))
    ((key, completions),) = rank.finished("a", LIMIT).groups
    assert (key, {each.weight_version for each in completions}) == (4, {7})
    rank.refit_close()
    rank.shutdown()
    with pytest.raises(GenerationError, match="the engine has ended"):
        rank.finished("a", LIMIT)
