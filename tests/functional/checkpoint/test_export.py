"""What vLLM makes of an exported folder: the log-probs of the policy that was saved."""

import gc
import os

import pytest
import torch

from grpo.checkpoint.export import export_checkpoint
from grpo.models.loading import load_model
from tests.support.saved_model import save_model

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]
PROMPTS = ([7, 301, 4, 99, 0, 12, 258, 3], [1, 2, 3, 5, 8], list(range(100, 140)))
FLOAT32 = 4e-5


@pytest.fixture
def in_process(monkeypatch):
    for name, value in {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}.items():
        monkeypatch.setitem(os.environ, name, value)


def prompt_logprobs(folder):
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder), dtype="float32", enforce_eager=True, kv_cache_memory_bytes=64 << 20, max_model_len=128,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    try:
        assert engine.get_tokenizer().decode(engine.get_tokenizer().encode("abc", add_special_tokens=False)) == "abc"
        outputs = engine.generate(
            [{"prompt_token_ids": prompt} for prompt in PROMPTS], SamplingParams(max_tokens=1, prompt_logprobs=0),
            use_tqdm=False,
        )  # fmt: skip
        return [
            [places[token].logprob for token, places in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)]
            for prompt, output in zip(PROMPTS, outputs, strict=True)
        ]
    finally:
        engine.llm_engine.engine_core.shutdown()
        del engine
        gc.collect()
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)])
def test_vllm_gives_the_log_probs_of_the_policy(tmp_path, family, tied, in_process):
    folder, checkpoint = save_model(tmp_path, family, tied=tied)
    export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder, max_shard_bytes=100_000)
    assert len(list((tmp_path / "hf").glob("model-*-of-*.safetensors"))) > 1
    model = load_model(folder, dtype=torch.float32)
    for prompt, found in zip(PROMPTS, prompt_logprobs(tmp_path / "hf"), strict=True):
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt])).logits.double().log_softmax(-1)[0, :-1]
        expected = logprobs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found).double(), expected, atol=FLOAT32, rtol=0)
