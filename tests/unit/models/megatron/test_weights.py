import pytest
import torch
from safetensors.torch import save_file

from grpo.errors import ModelError
from grpo.models.megatron.weights import SafetensorsFolder, dtype_is_wide


def test_slices_are_read_from_whichever_file_has_the_weight(tmp_path):
    first, second = torch.arange(12.0).view(4, 3), torch.arange(5.0).bfloat16()
    save_file({"a": first}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": second}, tmp_path / "model-00002-of-00002.safetensors")
    folder = SafetensorsFolder(tmp_path)
    assert sorted(folder) == ["a", "b"]
    assert len(folder) == 2
    assert torch.equal(folder["a"][1:3], first[1:3])
    assert torch.equal(folder["a"][:, :2], first[:, :2])
    assert torch.equal(folder["b"][:], second)
    assert [dtype_is_wide(folder[name]) for name in "ab"] == [True, False]
    assert [dtype_is_wide(each) for each in (first, second)] == [True, False]


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no \*\.safetensors weights"):
        SafetensorsFolder(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="no weight lm_head"):
        SafetensorsFolder(tmp_path)["lm_head.weight"]
    (tmp_path / "broken.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(ModelError, match=r"broken\.safetensors: not a safetensors file"):
        SafetensorsFolder(tmp_path)
