"""What the model hands to Megatron's layers, and which layers those are."""

import importlib.util
import sys
import warnings

import pytest
import torch

from grpo.errors import ConfigError
from tests.support.policy import tiny_config, tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from grpo.models.megatron.gpt import PackedRow, transformer_engine_usable
    from grpo.models.megatron.shape import ModelShape
    from grpo.workers.megatron.policy import MegatronPolicy

GPU = torch.device("cuda", 0)
ENGINE = "transformer_engine"


@pytest.fixture
def model():
    made = tiny_model()
    policy = MegatronPolicy(ModelShape.of(made.config), dict(made.state_dict()), tiny_config())
    return policy._trained.model


def angles_given(model, monkeypatch, packed):
    """What Transformer Engine's layers are told of the row [4, 2, 8]."""
    given = {}

    def decoder(**arguments):
        given.update(arguments)
        return arguments["hidden_states"]

    monkeypatch.setattr(model.config, "apply_rope_fusion", True)
    monkeypatch.setattr(model.decoder, "forward", decoder)
    positions = torch.cat([torch.arange(4), torch.arange(2), torch.arange(8)])
    model(torch.zeros(1, 14, dtype=torch.int64), positions, packed)
    assert given["packed_seq_params"] is packed
    return given["rotary_pos_emb"]


def test_transformer_engine_counts_positions_from_the_first_of_each_packed_sequence(model, monkeypatch):
    bounds = torch.tensor([0, 4, 6, 14], dtype=torch.int32)
    packed = PackedRow(
        qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=8, max_seqlen_kv=8, lengths=[4, 2, 8]
    )
    angles = angles_given(model, monkeypatch, packed)
    assert angles.shape == (8, 1, 1, 8)
    wanted = torch.outer(torch.arange(8.0), model.rotary_frequencies)
    assert torch.equal(angles[:, 0, 0], torch.cat([wanted, wanted], 1))


def test_and_takes_those_of_a_row_that_is_not_packed(model, monkeypatch):
    angles = angles_given(model, monkeypatch, None)
    assert torch.equal(angles[:, 0, 0, 0], torch.tensor([0.0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7]))


@pytest.mark.parametrize(("device", "dtype"), [(torch.device("cpu"), torch.bfloat16), (GPU, torch.float32)])
def test_transformer_engine_is_not_looked_for(monkeypatch, device, dtype):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: pytest.fail("looked for"))
    assert not transformer_engine_usable(device, dtype)


def test_without_transformer_engine_its_layers_are_not_used(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not transformer_engine_usable(GPU, torch.bfloat16)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Writes a package of that name."""
    for name in [name for name in sys.modules if name.partition(".")[0] == ENGINE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    def write(fp8):
        folder = tmp_path / ENGINE / "pytorch"
        folder.mkdir(parents=True)
        for each in (folder.parent, folder):
            (each / "__init__.py").touch()
        (folder / "fp8.py").write_text(fp8)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == ENGINE]:
        del sys.modules[name]


def test_where_it_can_be_imported_its_layers_are_used(engine):
    engine("")
    assert transformer_engine_usable(GPU, torch.bfloat16)


def test_one_that_cannot_be_imported_is_named_with_the_reason(engine):
    engine("raise OSError('libcudnn.so.9: cannot open shared object file')")
    with pytest.raises(ConfigError, match=r"megatron_cfg\.enabled.*transformer_engine is installed.*libcudnn\.so\.9"):
        transformer_engine_usable(GPU, torch.bfloat16)
