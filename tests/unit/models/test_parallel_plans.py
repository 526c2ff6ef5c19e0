import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from grpo.errors import ConfigError
from grpo.models.parallel_plans import check_tensor_parallel, shard_range, tensor_parallel
from tests.support.policy import MODELS, VOCABULARY, tiny_model
from tests.support.pretended_ranks import pretended_ranks

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
EXPECTED = {
    "embed_tokens.weight": ROWS, "lm_head.weight": ROWS,
    "q_proj.weight": ROWS, "k_proj.weight": ROWS, "v_proj.weight": ROWS, "o_proj.weight": COLUMNS,
    "q_proj.bias": ROWS, "k_proj.bias": ROWS, "v_proj.bias": ROWS,
    "gate_proj.weight": ROWS, "up_proj.weight": ROWS, "down_proj.weight": COLUMNS,
    "input_layernorm.weight": WHOLE, "post_attention_layernorm.weight": WHOLE, "norm.weight": WHOLE,
    "q_norm.weight": WHOLE, "k_norm.weight": WHOLE,
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_every_parameter_is_on_the_mesh_and_cut_as_it_should(kind, tied, sequence_parallel):
    with pretended_ranks(2, rank=1):
        model, whole = tiny_model(kind, tied=tied), dict(tiny_model(kind, tied=tied).named_parameters())
        tensor_parallel(model, init_device_mesh("cpu", (2,)), sequence_parallel=sequence_parallel)
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
        parameters = dict(model.named_parameters())
        assert parameters.keys() == whole.keys()
        for name, each in parameters.items():
            placement = EXPECTED[".".join(name.split(".")[-2:])]
            assert isinstance(each, DTensor)
            assert each.placements == (placement,), name
            assert each.shape == whole[name].shape
            ours = each.to_local()
            if placement == WHOLE:
                assert torch.equal(ours, whole[name])
            else:
                dim = placement.dim
                part = slice(*shard_range(whole[name].shape[dim], 1, 2))
                assert torch.equal(ours, whole[name][part] if dim == 0 else whole[name][:, part]), name


def test_ranges_cover_everything_once_as_torch_chunk_does():
    for size, ranks in ((VOCABULARY, 2), (VOCABULARY, 8), (3, 4), (8, 8), (9, 4)):
        ranges = [shard_range(size, rank, ranks) for rank in range(ranks)]
        chunks = list(torch.arange(size).chunk(ranks))
        assert [list(range(*each)) for each in ranges] == [
            *(each.tolist() for each in chunks), *[[]] * (ranks - len(chunks))
        ]  # fmt: skip


def test_heads_and_mlp_must_divide():
    check_tensor_parallel(tiny_model().config, 2)
    with pytest.raises(ConfigError, match=r"num_attention_heads of 4; possible: \[1, 2\]"):
        check_tensor_parallel(tiny_model().config, 3)
    many = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 6}
    with pytest.raises(ConfigError, match="leaves a rank without any of the 6 words"):
        check_tensor_parallel(tiny_model(**many).config, 4)
