"""vLLM one scheduler step at a time: versions of tokens, weights in mid-flight, prefixes of old weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo.config.schema.algorithm import AsyncGrpo
from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.generation.vllm_stream import VllmStream
from grpo.workers.protocol import Completion, GroupRequest, Replay
from tests.support.generation import CONTEXT, greedy, make_config, reference_logprobs, weights_of, write_model
from tests.support.generator_contract import FLOAT32, PROMPTS, ids, plain

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]
LENGTH = 12
LONG = tuple(7 * place % 251 for place in range(150))  # longer than a block of the prefix cache


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    return write_model(base / "a", seed=1), write_model(base / "b", seed=2)


@pytest.fixture(scope="module")
def generator(folders) -> Iterator[VllmGenerator]:
    config = make_config(folders[0], backend="vllm")
    in_flight = AsyncGrpo(enabled=True, in_flight_weight_updates=True)
    grpo = config.grpo.model_copy(update={"async_grpo": in_flight})
    engine = VllmGenerator(config.model_copy(update={"grpo": grpo}), folders[0])
    yield engine
    engine.shutdown()


def finish(stream: VllmStream, count: int) -> dict[int, list[Completion]]:
    found: dict[int, list[Completion]] = {}
    for _ in range(200):
        found.update(stream.step())
        if len(found) == count:
            assert stream.pending == 0
            return found
    raise AssertionError(f"only {sorted(found)} finished")


def add(stream: VllmStream, sampling, count: int = 1) -> None:
    for key, prompt in enumerate(PROMPTS):
        stream.add(GroupRequest(key, tuple(prompt), seed=key), count, sampling)


@pytest.mark.parametrize("replay", [None, Replay((2, 5, 9), CONTEXT)], ids=["sampled", "replayed"])
def test_groups_are_those_of_the_whole_batch(generator: VllmGenerator, folders, replay) -> None:
    generator.update_weights(weights_of(folders[0]), 3)
    sampling = plain(LENGTH, temperature=0.8, replay=replay)
    expected = generator.generate(PROMPTS, 3, sampling, list(range(len(PROMPTS))))
    stream = VllmStream(generator, recompute_cache=False)
    add(stream, sampling, 3)
    found = finish(stream, len(PROMPTS))
    assert ids([found[key] for key in range(len(PROMPTS))]) == ids(expected)
    assert {each.weight_version for group in found.values() for each in group} == {3}
    if replay is not None:
        assert {len(each.token_ids) for group in found.values() for each in group} == {2, 5, 9}


@pytest.mark.parametrize("recompute_cache", [False, True])
def test_weights_in_mid_flight(generator: VllmGenerator, folders, recompute_cache) -> None:
    """Every token has the log-prob of its own version; what is sampled after the update is the new model's."""
    generator.update_weights(weights_of(folders[0]), 0)
    old, new = (load_model(folder, dtype=torch.float32) for folder in folders)
    stream = VllmStream(generator, recompute_cache=recompute_cache)
    sampling = plain(LENGTH, temperature=0.0)
    add(stream, sampling)
    stream.add(GroupRequest(8, LONG, seed=8), 1, sampling)
    for _ in range(5):
        assert stream.step() == []
    stream.add(GroupRequest(10, LONG, seed=10), 1, sampling)  # whose prompt is there, of the old weights
    stream.update_weights(weights_of(folders[1]), 1)
    stream.add(GroupRequest(9, LONG, seed=9), 1, sampling)
    found = finish(stream, len(PROMPTS) + 3)
    for key, prompt in enumerate(PROMPTS):
        (completion,) = found[key]
        assert completion.weight_version == 0
        ((turn, version),) = completion.newer_from
        assert (version, completion.token_versions) == (1, [0] * turn + [1] * (LENGTH - turn))
        assert 0 < turn < LENGTH
        before = reference_logprobs(old, prompt, completion.token_ids)[:turn]
        torch.testing.assert_close(torch.tensor(completion.logprobs[:turn]).double(), before, atol=FLOAT32, rtol=0)
        assert completion.token_ids[:turn] == greedy(old, prompt, LENGTH)[:turn]
        if recompute_cache:
            after = reference_logprobs(new, prompt, completion.token_ids)[turn:]
            torch.testing.assert_close(torch.tensor(completion.logprobs[turn:]).double(), after, atol=FLOAT32, rtol=0)
    # The same prompt after the update: a prefix of the old weights must not be found.
    for (later,) in (found[9], found[10]):
        assert (later.weight_version, later.newer_from) == (1, ())
        assert later.token_ids == greedy(new, LONG, LENGTH)
        torch.testing.assert_close(
            torch.tensor(later.logprobs).double(), reference_logprobs(new, LONG, later.token_ids), atol=FLOAT32, rtol=0
        )


def test_an_update_before_the_first_token_leaves_no_old_ones(generator: VllmGenerator, folders) -> None:
    generator.update_weights(weights_of(folders[0]), 4)
    stream = VllmStream(generator, recompute_cache=True)
    add(stream, plain(4, temperature=0.0))
    stream.update_weights(weights_of(folders[1]), 5)
    found = finish(stream, len(PROMPTS))
    new = load_model(folders[1], dtype=torch.float32)
    for key, prompt in enumerate(PROMPTS):
        assert (found[key][0].weight_version, found[key][0].newer_from) == (5, ())
        assert found[key][0].token_ids == greedy(new, prompt, 4)


def test_two_updates_are_two_turns(generator: VllmGenerator, folders) -> None:
    generator.update_weights(weights_of(folders[0]), 6)
    stream = VllmStream(generator, recompute_cache=False)
    add(stream, plain(LENGTH))
    for version in (7, 8):
        for _ in range(4):
            stream.step()
        stream.update_weights(weights_of(folders[version % 2]), version)
    for group in finish(stream, len(PROMPTS)).values():
        versions = [version for _, version in group[0].newer_from]
        assert versions == [7, 8]
        assert len(group[0].token_versions) == len(group[0].token_ids) == len(group[0].logprobs)


def test_after_an_update_that_failed_half_way_no_token_is_sampled(
    generator: VllmGenerator, folders, monkeypatch
) -> None:
    class Routes:
        def load(self, name: str, tensor: torch.Tensor) -> None:
            """As if it were in place."""

        def finish(self) -> None:
            """Nothing to wait for."""

    generator.update_weights(weights_of(folders[0]), 4)
    monkeypatch.setattr(generator, "_routes", Routes())
    stream = VllmStream(generator, recompute_cache=False)
    add(stream, plain(LENGTH))
    stream.step()
    with pytest.raises(GenerationError, match="missing"):
        stream.update_weights(list(weights_of(folders[1]))[1:], 5)
    with pytest.raises(GenerationError, match="failed half-way"):
        stream.step()
    stream.update_weights(weights_of(folders[1]), 6)
    found = finish(stream, len(PROMPTS))
    assert {each.token_versions[-1] for group in found.values() for each in group} == {6}
