from dataclasses import replace

from grpo.models.dimensions import Dimensions
from grpo.planning.parallel import Parallel
from grpo.planning.traffic import layer_traffic, logits_traffic

SMALL = Dimensions(layers=2, hidden=10, intermediate=30, heads=4, kv_heads=2, head_dim=3, vocab=100)
ONE = Parallel("dtensor", tensor=1, pipeline=1, data=1, gpus_per_node=1)


def test_a_layer_by_hand():
    # c = 2: norms 4 and residuals 6 bytes a hidden number, twice; rotary 4 and attention 4 of q + k; SwiGLU 6.
    assert layer_traffic(SMALL, ONE, 2) == 2 * 10 * 10 + 4 * 18 + 4 * 18 + 6 * 30


def test_both_backends_have_the_same_kernels():
    megatron = Parallel("megatron", tensor=1, pipeline=1, data=1, gpus_per_node=1)
    assert layer_traffic(SMALL, ONE, 2) == layer_traffic(SMALL, megatron, 2)


def test_normalised_heads_are_read_and_written_once_more():
    assert layer_traffic(replace(SMALL, norms_heads=True), ONE, 2) - layer_traffic(SMALL, ONE, 2) == 4 * 18


def test_tensor_parallel_leaves_norms_whole_and_sequence_parallel_divides_them():
    two = Parallel("dtensor", tensor=2, pipeline=1, data=1, gpus_per_node=2)
    sequence = Parallel("dtensor", tensor=2, pipeline=1, data=1, gpus_per_node=2, sequence_parallel=True)
    whole, norms = layer_traffic(SMALL, ONE, 2), 2 * 10 * 10
    assert layer_traffic(SMALL, two, 2) == norms + (whole - norms) / 2
    assert layer_traffic(SMALL, sequence, 2) == whole / 2


def test_logits_of_one_chunk_are_kept_and_of_several_made_again():
    forward, backward = logits_traffic(SMALL, ONE, 2, tokens=40, batches=2, chunk=20)
    assert forward == 8 * 100 * 40
    assert backward == 10 * 100 * 40 + 2 * 8 * 100 * 10
    _, chunked = logits_traffic(SMALL, ONE, 2, tokens=40, batches=2, chunk=10)
    assert chunked == backward + forward + 2 * 8 * 100 * 10
