"""The transformers engine: the contract of every engine, and what is its own."""

from pathlib import Path

import pytest
import torch

from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.models.shipped import SHAPES
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.offload.memory import EmptiedStorages
from grpo.workers.protocol import SamplingParams
from tests.support.generation import make_config, reference_logprobs, weights_of, write_model
from tests.support.generator_contract import PROMPTS, LocalGeneratorContract, ids, plain


class TestHfGenerator(LocalGeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> HfGenerator:
        return HfGenerator(make_config(folder), folder)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_asleep_its_weights_hold_no_memory_and_awake_it_samples_as_before(tmp_path, level, tied):
    folder = write_model(tmp_path, tied=tied)
    engine = HfGenerator(make_config(folder), folder)
    engine.memory = EmptiedStorages(torch.device("cpu"))  # as on a GPU
    expected = engine.generate(PROMPTS, 2, plain(5), [1, 2, 3, 4])
    for _ in range(2):
        engine.sleep(level)
        assert {each.untyped_storage().nbytes() for each in engine._weights.blocks()} == {0}
        engine.wake(["weights"])
        if level == 2:
            engine.update_weights(weights_of(folder), 0)
        engine.wake(["kv_cache"])
        assert engine.generate(PROMPTS, 2, plain(5), [1, 2, 3, 4]) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("cache_bytes", [1, 100_000, 300_000])
def test_batches_under_a_memory_limit_give_the_same_completions(folder, cache_bytes):
    config = make_config(folder)
    sampling = plain(20, stop_token_ids=tuple(range(0, 300, 9)))
    whole = HfGenerator(config, folder).generate(PROMPTS, 5, sampling, [1, 2, 3, 4])
    parts = HfGenerator(config, folder, cache_bytes=cache_bytes).generate(PROMPTS, 5, sampling, [1, 2, 3, 4])
    assert ids(whole) == ids(parts)


def test_another_architecture_is_decoded_by_its_own_forward(tmp_path):
    from transformers import GPT2Config

    GPT2Config(
        vocab_size=50,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=0.3,
    ).save_pretrained(tmp_path)
    engine = HfGenerator(make_config(tmp_path, random_weights=True, max_total_sequence_length=64), tmp_path)
    model = load_model(tmp_path, dtype=torch.float32, random_weights=True, seed=42)
    prompts = [[4, 5, 6, 7, 8], [9], [3, 2]]
    sampling = SamplingParams(12, temperature=0.8, stop_token_ids=(1, 2, 3))
    results = engine.generate(prompts, 4, sampling, [1, 2, 3])
    for prompt, group in zip(prompts, results, strict=True):
        for completion in group:
            expected = reference_logprobs(model, prompt, completion.token_ids, 0.8)
            torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=5e-5, rtol=0)
    assert {completion.finish_reason for group in results for completion in group} == {"stop", "length"}


def test_random_weights_are_those_of_the_seed(tmp_path):
    engine = HfGenerator(make_config(SHAPES / "tiny-llama", random_weights=True), SHAPES / "tiny-llama")
    model = load_model(SHAPES / "tiny-llama", dtype=torch.float32, random_weights=True, seed=42)
    ((completion,),) = engine.generate([[1, 2, 3]], 1, plain(6), [0])
    expected = reference_logprobs(model, [1, 2, 3], completion.token_ids)
    torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=5e-5, rtol=0)


def test_bfloat16_stays_near_float32(folder):
    engine = HfGenerator(make_config(folder, precision="bfloat16"), folder)
    model = load_model(folder, dtype=torch.bfloat16)
    differences = []
    for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 4, plain(10), [1, 2, 3, 4]), strict=True):
        for completion in group:
            expected = reference_logprobs(model, prompt, completion.token_ids)
            differences.append((torch.tensor(completion.logprobs) - expected).abs().mean())
    assert torch.stack(differences).mean() < 0.05


def test_weights_that_give_nan_are_reported(folder):
    engine = HfGenerator(make_config(folder), folder)
    engine.update_weights(((name, tensor * torch.nan) for name, tensor in weights_of(folder)), 1)
    with pytest.raises(GenerationError, match="not finite"):
        engine.generate([[1, 2]], 2, plain(3), [0])


def test_long_completions_draw_more_than_one_block_of_noise(tmp_path):
    folder = write_model(tmp_path, max_position_embeddings=600)
    config = make_config(folder, max_total_sequence_length=600)
    engine = HfGenerator(config, folder)
    model = load_model(folder, dtype=torch.float32)
    results = engine.generate([[1, 2], [3]], 2, plain(520), [0, 1])
    assert ids(results)[1] == ids(engine.generate([[3]], 2, plain(520), [1]))[0]
    for completion in results[0]:
        assert completion.token_ids[:250] != completion.token_ids[256:506]
        expected = reference_logprobs(model, [1, 2], completion.token_ids)
        torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=5e-5, rtol=0)


def test_shutdown_is_quiet_and_may_be_repeated(folder):
    engine = HfGenerator(make_config(folder), folder)
    engine.shutdown()
    engine.shutdown()
