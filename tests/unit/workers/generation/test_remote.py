"""Weights as bytes, and what the engine's process does with them."""

import pytest
import torch

from grpo.errors import GenerationError
from grpo.workers.generation.remote import EngineProcess, PackedWeight
from tests.support.generation import greedy, load_model, make_config, weights_of, write_model
from tests.support.generator_contract import PROMPTS, plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 3, 4), (1,)])
def test_a_packed_weight_comes_back_bit_for_bit(dtype, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed = PackedWeight.pack("a.weight", tensor)
    packed.data.flags.writeable = False
    name, unpacked = packed.unpack()
    assert name == "a.weight"
    assert unpacked.dtype == dtype
    assert torch.equal(unpacked, tensor)


def test_a_transposed_weight_is_packed_in_its_own_order():
    tensor = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(PackedWeight.pack("a", tensor).unpack()[1], tensor)


def test_packing_copies():
    tensor = torch.zeros(3)
    packed = PackedWeight.pack("a", tensor)
    tensor.fill_(1.0)
    assert packed.unpack()[1].tolist() == [0.0] * 3


def test_the_process_updates_generates_and_refuses(tmp_path):
    folder, other = write_model(tmp_path / "a", seed=1), write_model(tmp_path / "b", seed=2)
    process = EngineProcess(make_config(folder), folder)
    packed = [PackedWeight.pack(name, tensor) for name, tensor in weights_of(other)]
    process.update_weights(packed, 5)
    ((completion,),) = process.generate([PROMPTS[0]], 1, plain(6, temperature=0.0), [0])
    assert completion.token_ids == greedy(load_model(other, dtype=torch.float32), PROMPTS[0], 6)
    assert completion.weight_version == 5
    with pytest.raises(GenerationError, match="missing"):
        process.update_weights(packed[1:], 6)
    process.sleep()
    process.wake()
    process.shutdown()
