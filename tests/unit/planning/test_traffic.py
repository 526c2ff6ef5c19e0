from grpo.models.dimensions import Dimensions
from grpo.planning.parallel import Parallel
from grpo.planning.traffic import layer_traffic, logits_traffic

SMALL = Dimensions(layers=2, hidden=10, intermediate=30, heads=4, kv_heads=2, head_dim=3, vocab=100)
ONE = Parallel("dtensor", tensor=1, pipeline=1, data=1, gpus_per_node=1)


def test_a_layer_by_hand():
    # c = 2: norms 36 and residuals 6 bytes a hidden number, twice; rotary 20 and attention 4 of q + k; SwiGLU 10.
    assert layer_traffic(SMALL, ONE, 2) == 2 * 42 * 10 + 20 * 18 + 4 * 18 + 10 * 30


def test_megatron_has_one_kernel_a_norm():
    megatron = Parallel("megatron", tensor=1, pipeline=1, data=1, gpus_per_node=1)
    assert layer_traffic(SMALL, ONE, 2) - layer_traffic(SMALL, megatron, 2) == 2 * 32 * 10


def test_tensor_parallel_leaves_norms_whole_and_sequence_parallel_divides_them():
    two = Parallel("dtensor", tensor=2, pipeline=1, data=1, gpus_per_node=2)
    sequence = Parallel("dtensor", tensor=2, pipeline=1, data=1, gpus_per_node=2, sequence_parallel=True)
    whole, norms = layer_traffic(SMALL, ONE, 2), 2 * 42 * 10
    assert layer_traffic(SMALL, two, 2) == norms + (whole - norms) / 2
    assert layer_traffic(SMALL, sequence, 2) == whole / 2


def test_logits_of_one_chunk_are_kept_and_of_several_made_again():
    forward, backward = logits_traffic(SMALL, ONE, 2, tokens=40, batches=2, chunk=20)
    assert forward == 12 * 100 * 40
    assert backward == 10 * 100 * 40 + 2 * 8 * 100 * 10
    _, chunked = logits_traffic(SMALL, ONE, 2, tokens=40, batches=2, chunk=10)
    assert chunked == backward + forward + 2 * 8 * 100 * 10
