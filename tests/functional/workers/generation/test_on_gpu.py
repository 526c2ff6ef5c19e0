"""vLLM on a GPU: what it captured and derived from weights, after they have moved."""

import pytest
import torch

from grpo.models.loading import load_model
from grpo.workers.generation.vllm import VllmGenerator
from tests.support.generation import greedy, make_config, weights_of, write_model
from tests.support.generator_contract import PROMPTS, plain

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("vllm"),
]
LENGTH = 12


def test_captured_graphs_and_buffers_are_valid_after_sleep_and_refit(tmp_path):
    """Greedy completions with graphs are those of the model's own forward, whatever weights and sleep came between."""
    folders = [write_model(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    config = make_config(folders[0], backend="vllm", generation={
        "vllm_cfg": {"enforce_eager": False, "gpu_memory_utilization": 0.3},
        "colocated": {"enabled": True, "sleep_level": 2},
    })  # fmt: skip
    cluster = config.cluster.model_copy(update={"gpus_per_node": 1})
    engine = VllmGenerator(config.model_copy(update={"cluster": cluster}), folders[0])
    try:
        for version, folder in enumerate((folders[1], folders[0], folders[1]), start=1):
            if version > 1:
                engine.sleep(2)
                engine.wake(["weights"])
            engine.update_weights(weights_of(folder), version)
            if version > 1:
                engine.wake(["kv_cache"])
            model = load_model(folder, dtype=torch.float32)
            results = engine.generate(PROMPTS, 1, plain(LENGTH, temperature=0.0), [0] * len(PROMPTS))
            assert [group[0].token_ids for group in results] == [greedy(model, each, LENGTH) for each in PROMPTS]
    finally:
        engine.shutdown()
