"""The vLLM engine: the contract of every engine, and what is its own."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.models.shipped import SHAPES
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.generation.vllm import VllmGenerator
from tests.support.generation import greedy, make_config, reference_logprobs, weights_of, write_model
from tests.support.generator_contract import FLOAT32, PROMPTS, LocalGeneratorContract, ids, plain

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]


class TestVllmGenerator(LocalGeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def started(cls, folder: Path) -> Iterator[VllmGenerator]:
        config = make_config(folder, backend="vllm", generation={"stop_strings": ["A"]})
        engine = VllmGenerator(config, folder)
        yield engine
        engine.shutdown()

    def test_the_engines_effective_settings(self, started: VllmGenerator, snapshot) -> None:
        """What vLLM made of the arguments: a default that changes between releases shows here."""
        assert _effective(started.engine.llm_engine.vllm_config) == snapshot

    def test_both_engines_agree(self, engine: VllmGenerator, folder: Path) -> None:
        other = HfGenerator(make_config(folder), folder)
        sampling = plain(20, temperature=0.0, stop_token_ids=tuple(range(0, 331, 10)))
        first, second = (each.generate(PROMPTS, 1, sampling, [0, 0, 0, 0]) for each in (engine, other))
        assert ids(first) == ids(second)
        for (mine,), (its,) in zip(first, second, strict=True):
            assert mine.finish_reason == its.finish_reason
            torch.testing.assert_close(mine.logprobs, its.logprobs, atol=FLOAT32, rtol=0)

    def test_in_place_a_failed_update_leaves_nothing_to_generate_with_until_one_succeeds(
        self, engine: VllmGenerator, folder: Path, monkeypatch
    ) -> None:
        class Routes:
            loaded: ClassVar[list[str]] = []

            def load(self, name: str, tensor: torch.Tensor) -> None:
                self.loaded.append(name)

            def finish(self) -> None:
                self.loaded.append("finished")

        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield from list(weights_of(folder))[:6]
            raise ConnectionError("sender died")

        monkeypatch.setattr(engine, "_routes", Routes())
        assert engine.in_place
        missing = list(weights_of(folder))[1:]
        for weights, error in ((broken(), ConnectionError), (iter(missing), GenerationError)):
            with pytest.raises(error):
                engine.update_weights(weights, 7)
            assert engine.weight_version == 0
            with pytest.raises(GenerationError, match="failed half-way"):
                engine.generate(PROMPTS, 1, plain(2), [1, 2, 3, 4])
        Routes.loaded.clear()
        engine.update_weights(weights_of(folder), 7)
        assert Routes.loaded == [*engine.expected.shapes, "finished"]
        assert engine.generate(PROMPTS, 1, plain(2), [1, 2, 3, 4])[0][0].weight_version == 7

    def test_sampling_leaves_the_global_generator_alone(self, engine: VllmGenerator) -> None:
        before = torch.get_rng_state()
        engine.generate(PROMPTS, 2, plain(4), [1, 2, 3, 4])
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_tied_model_takes_new_weights_in_an_engine_started_after_another(tmp_path, family):
    folder, other = (write_model(tmp_path / name, family, tied=True, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    threads, function = torch.get_num_threads(), torch.set_num_threads
    (folder / "model.safetensors").unlink()  # not needed where a refit comes first
    engine = VllmGenerator(make_config(folder, backend="vllm"), folder, weights_from="refit")
    try:
        with pytest.raises(GenerationError, match="started without weights"):
            engine.generate(PROMPTS, 1, plain(8), [0, 0, 0, 0])
        engine.update_weights(weights_of(other), 1)
        model = load_model(other, dtype=torch.float32)
        for prompt, (completion,) in zip(
            PROMPTS, engine.generate(PROMPTS, 1, plain(8, temperature=0.0), [0, 0, 0, 0]), strict=True
        ):
            assert completion.token_ids == greedy(model, prompt, 8)
            expected = reference_logprobs(model, prompt, completion.token_ids)
            torch.testing.assert_close(torch.tensor(completion.logprobs).double(), expected, atol=FLOAT32, rtol=0)
        with pytest.raises(GenerationError, match="without a tokenizer"):
            engine.generate(PROMPTS, 1, plain(8, stop_strings=("x",)), [0, 0, 0, 0])
    finally:
        engine.shutdown()
        engine.shutdown()
    assert not torch.distributed.is_initialized()
    assert torch.set_num_threads is function
    assert torch.get_num_threads() == threads
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ


def test_random_weights_are_those_of_the_seed() -> None:
    folder = SHAPES / "tiny-llama"
    config = make_config(folder, backend="vllm", random_weights=True)
    engine = VllmGenerator(config, folder)
    try:
        results = engine.generate(PROMPTS, 1, plain(8, temperature=0.0), [0, 0, 0, 0])
    finally:
        engine.shutdown()
    model = load_model(folder, dtype=torch.float32, random_weights=True, seed=config.grpo.seed)
    assert [group[0].token_ids for group in results] == [greedy(model, prompt, 8) for prompt in PROMPTS]
    assert results[0][0].weight_version == 0


def test_a_folder_that_cannot_be_served_is_an_error_of_generation(tmp_path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(GenerationError, match=r"vLLM .* does not start"):
        VllmGenerator(make_config(folder, backend="vllm"), folder)
    assert not torch.distributed.is_initialized()


def _effective(config: Any) -> dict[str, object]:
    model, cache, scheduler, compilation = (
        config.model_config, config.cache_config, config.scheduler_config, config.compilation_config
    )  # fmt: skip
    return {
        "dtype": str(model.dtype),
        "max_model_len": model.max_model_len,
        "enforce_eager": model.enforce_eager,
        "logprobs_mode": str(model.logprobs_mode),
        "generation_config": model.generation_config,
        "quantization": model.quantization,
        "seed": model.seed,
        "cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": scheduler.async_scheduling,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "policy": scheduler.policy,
        "compilation_mode": int(compilation.mode),
        "cudagraph_mode": str(compilation.cudagraph_mode),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
        "speculative": config.speculative_config is not None,
        "lora": config.lora_config is not None,
    }
