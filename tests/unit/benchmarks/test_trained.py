import torch
from transformers import LlamaConfig

from benchmarks.trained import Layout, _Drawn, _readers, random_batch, trained
from grpo.models.sharded_loading import shape_of_model

SHAPE = LlamaConfig(
    vocab_size=1000, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0,
)  # fmt: skip


def test_a_policy_in_this_process_trains_and_gives_its_state():
    batch = random_batch(30, 7)
    assert batch.lengths.tolist() == [7, 7, 7, 7]
    assert int(batch.mask.sum()) == 4 * 6
    with trained(SHAPE, Layout("cpu", 1)) as found:
        found.train(batch)
        assert found.policy.weight_version == 1
        weights = sum(each.numel() for _, each in found.policy.export_weights())
        assert 12 * weights < found.ranks.stage(copy=False).bytes < 12 * weights + 100 * 12  # and a step count each


def test_weights_over_ranks_are_drawn_part_by_part_with_ones_for_norms(tmp_path):
    SHAPE.save_pretrained(tmp_path)
    shapes = {name: each.shape for name, each in shape_of_model(tmp_path).named_parameters()}
    whole = _Drawn(tmp_path, "cpu")
    assert {name: whole[name].shape for name in whole} == shapes
    for name, read in _readers(tmp_path, "cpu"):
        part = read(tuple(slice(0, 4) for _ in shapes[name]))
        assert part.shape == torch.Size(4 for _ in shapes[name])
        assert torch.equal(part, torch.ones(4)) == (len(shapes[name]) == 1)
