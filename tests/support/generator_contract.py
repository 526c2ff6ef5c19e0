"""What every engine must do. Subclass it and give a `started` fixture: the engine on weights `MODEL_SEED`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.placement.errors import PlacementError
from grpo.workers.protocol import Completion, Generator, SamplingParams
from tests.support.generation import (
    CONTEXT,
    VOCABULARY,
    greedy,
    reference_logits,
    reference_logprobs,
    weights_of,
    write_model,
)

EOS = 258
PROMPTS = [[72, 101, 108], list(range(40, 71)), [5], [9, 8, 7, 6, 5, 4]]
FLOAT32 = 5e-5


def plain(max_new_tokens: int, **values) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, **values)


def flat(results: list[list[Completion]]) -> list[Completion]:
    return [completion for group in results for completion in group]


def ids(results: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in group] for group in results]


class GeneratorContract:
    """Tests of the `Generator` protocol."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return write_model(tmp_path_factory.mktemp("model"), seed=1)

    @pytest.fixture(scope="class")
    @classmethod
    def other_folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return write_model(tmp_path_factory.mktemp("other"), seed=2)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, folder: Path) -> PreTrainedModel:
        return load_model(folder, dtype=torch.float32)

    @pytest.fixture(scope="class")
    @classmethod
    def other_model(cls, other_folder: Path) -> PreTrainedModel:
        return load_model(other_folder, dtype=torch.float32)

    @pytest.fixture
    def engine(self, started: Generator, folder: Path) -> Iterator[Generator]:
        """The engine with the weights of `folder` at version 0, whatever the test before it did."""
        if started.weight_version != 0:
            self.update(started, weights_of(folder), 0)
        return started

    def update(self, engine: Generator, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        """How this engine gets new weights."""
        engine.update_weights(weights, version)

    @pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
    def test_logprobs_are_of_the_distribution_sampled_from(self, engine, model, temperature):
        results = engine.generate(PROMPTS, 3, plain(9, temperature=temperature), [11, 12, 13, 14])
        for prompt, group in zip(PROMPTS, results, strict=True):
            for completion in group:
                expected = reference_logprobs(model, prompt, completion.token_ids, temperature)
                torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=FLOAT32, rtol=0)

    def test_each_prompt_gets_its_completions_of_full_length_in_order(self, engine, model):
        results = engine.generate(PROMPTS, 5, plain(7), [1, 2, 3, 4])
        assert [len(group) for group in results] == [5, 5, 5, 5]
        for group in results:
            assert {len(completion.token_ids) for completion in group} == {7}
            assert {completion.finish_reason for completion in group} == {"length"}
            assert len({tuple(completion.token_ids) for completion in group}) == 5

    def test_greedy_is_the_argmax_with_the_plain_logprob(self, engine, model):
        results = engine.generate(PROMPTS, 1, plain(12, temperature=0.0), [0, 0, 0, 0])
        for prompt, (completion,) in zip(PROMPTS, results, strict=True):
            assert completion.token_ids == greedy(model, prompt, 12)
            expected = reference_logprobs(model, prompt, completion.token_ids)
            torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=FLOAT32, rtol=0)

    def test_same_seed_same_tokens_other_seed_other_tokens(self, engine):
        first = engine.generate(PROMPTS, 2, plain(8), [1, 2, 3, 4])
        again = engine.generate(PROMPTS, 2, plain(8), [1, 2, 3, 4])
        other = engine.generate(PROMPTS, 2, plain(8), [1, 2, 3, 5])
        assert first == again
        assert ids(first)[:3] == ids(other)[:3]
        assert ids(first)[3] != ids(other)[3]

    def test_equal_prompts_with_different_seeds_differ(self, engine):
        first, second = engine.generate([PROMPTS[0], PROMPTS[0]], 2, plain(8), [1, 2])
        assert len({tuple(completion.token_ids) for completion in first + second}) == 4

    def test_seeds_that_differ_in_high_bits_alone_differ(self, engine):
        seeds = [7, 7 + (1 << 32), 7 + (1 << 62)]
        results = engine.generate([PROMPTS[0]] * 3, 1, plain(12), seeds)
        assert len({tuple(group[0].token_ids) for group in results}) == 3

    def test_completions_do_not_depend_on_the_batch_they_are_in(self, engine):
        together = engine.generate(PROMPTS, 3, plain(8), [1, 2, 3, 4])
        apart = [engine.generate([PROMPTS[i]], 3, plain(8), [i + 1])[0] for i in reversed(range(4))][::-1]
        assert ids(together) == ids(apart)

    def test_one_token(self, engine, model):
        ((completion,),) = engine.generate([PROMPTS[1]], 1, plain(1), [3])
        assert len(completion.token_ids) == len(completion.logprobs) == 1
        expected = reference_logprobs(model, PROMPTS[1], completion.token_ids)
        torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=FLOAT32, rtol=0)

    def test_stop_token_at_once_is_kept(self, engine):
        results = engine.generate(PROMPTS, 2, plain(6, stop_token_ids=tuple(range(VOCABULARY))), [1, 2, 3, 4])
        for completion in flat(results):
            assert len(completion.token_ids) == len(completion.logprobs) == 1
            assert completion.finish_reason == "stop"

    def test_stop_tokens_end_each_completion_where_it_first_has_one(self, engine):
        """With the same seeds the tokens are those of a run without stops, cut after the first stop token."""
        free = engine.generate(PROMPTS, 4, plain(24), [1, 2, 3, 4])
        stops = tuple(range(0, VOCABULARY, 12))
        cut = engine.generate(PROMPTS, 4, plain(24, stop_token_ids=stops), [1, 2, 3, 4])
        lengths = set()
        for whole, part in zip(flat(free), flat(cut), strict=True):
            ends = [index + 1 for index, token in enumerate(whole.token_ids) if token in stops]
            length = ends[0] if ends else 24
            assert part.token_ids == whole.token_ids[:length]
            assert part.finish_reason == ("stop" if ends else "length")
            torch.testing.assert_close(part.logprobs, whole.logprobs[:length], atol=FLOAT32, rtol=0)
            lengths.add(length)
        assert len(lengths) > 3

    def test_min_new_tokens_forbids_stops_and_logprobs_say_so(self, engine, model):
        stops = (*range(200), EOS)
        results = engine.generate(PROMPTS, 2, plain(6, min_new_tokens=4, stop_token_ids=stops), [1, 2, 3, 4])
        for prompt, group in zip(PROMPTS, results, strict=True):
            for completion in group:
                assert len(completion.token_ids) >= 5
                assert min(completion.token_ids[:4]) >= 200
                logits = reference_logits(model, prompt, completion.token_ids)
                logits[:4, list(stops)] = -torch.inf
                chosen = torch.tensor(completion.token_ids)[:, None]
                expected = logits.log_softmax(-1).gather(1, chosen)[:, 0]
                actual = torch.tensor(completion.logprobs).double()
                torch.testing.assert_close(actual, expected, atol=FLOAT32, rtol=0)

    def test_a_stop_string_ends_with_the_token_that_completes_it(self, engine):
        free = engine.generate([PROMPTS[0]], 6, plain(40), [5])[0]
        texts = ["".join(chr(token) for token in completion.token_ids if token < 256) for completion in free]
        assert all(texts)
        stopping = engine.generate([PROMPTS[0]], 6, plain(40, stop_strings=("!", "A", "7q")), [5])[0]
        ended = [completion for completion in stopping if completion.finish_reason == "stop"]
        assert ended, "no completion holds a stop string: choose another seed"
        for whole, part in zip(free, stopping, strict=True):
            length = len(part.token_ids)
            assert part.token_ids == whole.token_ids[:length]
            assert length == len(part.logprobs)
            assert (length == 40) or part.finish_reason == "stop"
        for part in ended:
            text = _text(part.token_ids)
            assert any(string in text for string in ("!", "A", "7q"))
            assert not any(string in _text(part.token_ids[:-1]) for string in ("!", "A", "7q"))

    @pytest.mark.parametrize(("top_p", "top_k"), [(0.4, None), (1.0, 3), (0.7, 5)])
    def test_filtered_logprobs_are_renormalised(self, engine, model, top_p, top_k):
        results = engine.generate(PROMPTS, 4, plain(6, top_p=top_p, top_k=top_k), [1, 2, 3, 4])
        for prompt, group in zip(PROMPTS, results, strict=True):
            for completion in group:
                probabilities = reference_logits(model, prompt, completion.token_ids).softmax(-1)
                for row, token, logprob in zip(probabilities, completion.token_ids, completion.logprobs, strict=True):
                    kept = _kept(row.tolist(), top_p, top_k)
                    assert token in kept
                    expected = row[token] / row[kept].sum()
                    assert abs(expected.log().item() - logprob) < 2e-4

    def test_validation_may_sample_otherwise_than_training(self, engine, model):
        training = engine.generate(PROMPTS, 2, plain(5, temperature=1.0), [1, 2, 3, 4])
        validation = engine.generate(PROMPTS, 1, plain(9, temperature=0.0), [1, 2, 3, 4])
        assert [group[0].token_ids for group in validation] == [greedy(model, prompt, 9) for prompt in PROMPTS]
        assert engine.generate(PROMPTS, 2, plain(5, temperature=1.0), [1, 2, 3, 4]) == training

    def test_new_weights_change_greedy_output_despite_a_cached_prefix(self, engine, model, other_folder, other_model):
        prompt = [(7 * i) % 250 for i in range(180)]  # several blocks of any prefix cache
        for _ in range(2):
            ((before,),) = engine.generate([prompt], 1, plain(8, temperature=0.0), [0])
        assert (before.token_ids, before.weight_version) == (greedy(model, prompt, 8), 0)
        self.update(engine, weights_of(other_folder), 41)
        assert engine.weight_version == 41
        ((after,),) = engine.generate([prompt], 1, plain(8, temperature=0.0), [0])
        assert after.token_ids == greedy(other_model, prompt, 8) != before.token_ids
        assert after.weight_version == 41
        expected = reference_logprobs(other_model, prompt, after.token_ids)
        torch.testing.assert_close(torch.tensor(after.logprobs).double(), expected, atol=FLOAT32, rtol=0)

    def test_refits_of_the_same_weights_change_nothing(self, engine, folder):
        before = engine.generate(PROMPTS, 2, plain(8), [1, 2, 3, 4])
        for version in (1, 2, 3):
            self.update(engine, weights_of(folder), version)
            after = engine.generate(PROMPTS, 2, plain(8), [1, 2, 3, 4])
            assert ids(after) == ids(before)
            assert {completion.weight_version for group in after for completion in group} == {version}
            for old, new in zip(flat(before), flat(after), strict=True):
                assert new.logprobs == old.logprobs

    def test_a_sender_may_reuse_its_buffer(self, engine, other_folder, other_model):
        def reusing():
            for name, tensor in weights_of(other_folder):
                buffer = tensor.clone()
                yield name, buffer
                buffer.fill_(torch.nan)

        self.update(engine, reusing(), 3)
        ((completion,),) = engine.generate([PROMPTS[0]], 1, plain(8, temperature=0.0), [0])
        assert completion.token_ids == greedy(other_model, PROMPTS[0], 8)

    def test_completions_end_with_the_context(self, engine):
        prompts = [[3] * (CONTEXT - 4), [4, 5]]
        long, short = engine.generate(prompts, 2, plain(9), [1, 2])
        assert {(len(completion.token_ids), completion.finish_reason) for completion in long} == {(4, "length")}
        assert {(len(completion.token_ids), completion.finish_reason) for completion in short} == {(9, "length")}

    @pytest.mark.parametrize(
        ("prompts", "num_completions", "seeds", "message"),
        [
            ([[1] * CONTEXT], 1, [0], f"{CONTEXT} tokens"),
            ([[]], 1, [0], "no tokens"),
            ([[1, VOCABULARY]], 1, [0], "vocabulary"),
            ([[1]], 0, [0], "num_completions"),
            ([[1]], 1, [0, 1], "2 seeds"),
        ],
    )
    def test_a_request_out_of_range_is_refused_and_the_next_one_works(
        self, engine, prompts, num_completions, seeds, message
    ):
        with pytest.raises(GenerationError, match=message):
            engine.generate(prompts, num_completions, plain(2), seeds)
        assert len(engine.generate([[1]], 2, plain(2), [0])[0]) == 2

    def test_no_prompts_no_completions(self, engine):
        assert engine.generate([], 4, plain(2), []) == []

    def test_sleep_at_level_one_keeps_the_weights(self, engine):
        before = engine.generate(PROMPTS, 2, plain(4), [1, 2, 3, 4])
        for tags in (["weights", "kv_cache"], ["weights"]):
            engine.sleep(1)
            assert set(engine.residences().values()) == {"cpu", "absent"}
            engine.wake(tags)
        engine.wake(["kv_cache"])
        assert set(engine.residences().values()) == {"gpu"}
        assert engine.generate(PROMPTS, 2, plain(4), [1, 2, 3, 4]) == before

    def test_sleep_at_level_two_is_over_with_a_refit(self, engine, folder):
        before = engine.generate(PROMPTS, 2, plain(4), [1, 2, 3, 4])
        engine.sleep(2)
        engine.wake(["weights"])
        with pytest.raises(PlacementError, match="without values until a refit"):
            engine.wake(["kv_cache"])
        self.update(engine, weights_of(folder), 0)
        engine.wake(["kv_cache"])
        assert engine.generate(PROMPTS, 2, plain(4), [1, 2, 3, 4]) == before

    def test_asleep_it_refuses_to_generate(self, engine):
        engine.sleep(1)
        with pytest.raises(PlacementError, match="generate needs engine_weights on gpu, but it is on cpu"):
            engine.generate(PROMPTS, 2, plain(4), [1, 2, 3, 4])
        engine.wake(["weights", "kv_cache"])


class LocalGeneratorContract(GeneratorContract):
    """Tests of `LocalGenerator`: an engine elsewhere ends with a refit that fails."""

    @pytest.mark.parametrize("fault", ["missing", "unknown", "misshaped", "twice"])
    def test_a_bad_update_is_refused_and_the_old_weights_stay(self, engine, other_folder, fault):
        before = engine.generate(PROMPTS, 2, plain(6), [1, 2, 3, 4])
        weights = list(weights_of(other_folder))
        name, tensor = weights[5]
        if fault == "missing":
            del weights[5]
        elif fault == "unknown":
            name = "model.layers.7.mlp.up_proj.weight"
            weights.append((name, tensor))
        elif fault == "misshaped":
            weights[5] = (name, tensor[:-1])
        else:
            weights.append((name, tensor))
        with pytest.raises(GenerationError, match=name):
            engine.update_weights(iter(weights), 9)
        assert engine.weight_version == 0
        assert engine.generate(PROMPTS, 2, plain(6), [1, 2, 3, 4]) == before

    def test_a_sender_that_fails_half_way_leaves_the_old_weights(self, engine, other_folder):
        def broken():
            yield from list(weights_of(other_folder))[:6]
            raise ConnectionError("sender died")

        before = engine.generate(PROMPTS, 2, plain(6), [1, 2, 3, 4])
        with pytest.raises(ConnectionError, match="sender died"):
            engine.update_weights(broken(), 9)
        assert engine.weight_version == 0
        assert engine.generate(PROMPTS, 2, plain(6), [1, 2, 3, 4]) == before

    def test_asleep_it_refuses_to_be_updated(self, engine, folder):
        engine.sleep(1)
        with pytest.raises(PlacementError, match="update_weights needs engine_weights"):
            engine.update_weights(weights_of(folder), 0)
        engine.wake(["weights", "kv_cache"])


def _text(tokens: list[int]) -> str:
    """The printable ASCII of tiny-llama's byte tokens (other bytes as '?')."""
    return "".join(_BYTES.get(token, "?") for token in tokens)


def _byte_table() -> dict[int, str]:
    from grpo.models.loading import load_tokenizer
    from grpo.models.shipped import SHAPES

    tokenizer = load_tokenizer(SHAPES / "tiny-llama")
    return {token: text for token in range(256) if (text := tokenizer.decode([token])).isascii()}


_BYTES = _byte_table()


def _kept(probabilities: list[float], top_p: float, top_k: int | None) -> list[int]:
    """Tokens that top-k and then top-p keep, worked out one by one."""
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])[:top_k]
    total = sum(probabilities[token] for token in order)
    kept, reached = [], 0.0
    for token in order:
        if reached >= top_p * total:
            break
        kept.append(token)
        reached += probabilities[token]
    return kept
