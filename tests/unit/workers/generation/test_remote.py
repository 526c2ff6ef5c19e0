"""What the engine's process does with the weights that it is sent."""

import pytest
import torch

from grpo.errors import GenerationError
from grpo.placement.errors import PlacementError
from grpo.workers.generation.remote import EngineProcess
from grpo.workers.groups.packed import PackedTensor
from tests.support.generation import greedy, load_model, make_config, weights_of, write_model
from tests.support.generator_contract import PROMPTS, plain


def test_the_process_updates_generates_and_refuses(tmp_path):
    folder, other = write_model(tmp_path / "a", seed=1), write_model(tmp_path / "b", seed=2)
    process = EngineProcess(make_config(folder), folder)
    packed = [PackedTensor.pack(name, tensor) for name, tensor in weights_of(other)]
    process.update_weights(packed, 5)
    ((completion,),) = process.generate([PROMPTS[0]], 1, plain(6, temperature=0.0), [0])
    assert completion.token_ids == greedy(load_model(other, dtype=torch.float32), PROMPTS[0], 6)
    assert completion.weight_version == 5
    with pytest.raises(GenerationError, match="missing"):
        process.update_weights(packed[1:], 6)
    process.sleep(1)
    with pytest.raises(PlacementError, match="generate needs engine_weights"):
        process.generate([PROMPTS[0]], 1, plain(6), [0])
    process.wake(("weights", "kv_cache"))
    process.generate([PROMPTS[0]], 1, plain(6), [0])
    process.shutdown()
