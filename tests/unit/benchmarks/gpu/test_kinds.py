import pytest
import torch

from benchmarks.gpu.bare import BareLoop
from benchmarks.gpu.kinds import (
    ATTENTION,
    GRADIENTS,
    HEAD,
    HEAD_OTHER,
    MLP,
    MLP_OTHER,
    OPTIMIZER,
    OTHER,
    PROJECTIONS,
    kind_of,
    product_flops,
    profiled,
)  # fmt: skip
from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.work import batch_of, packs_of, update_flops
from grpo.models.dimensions import Dimensions

SMALL = Dimensions(layers=1, hidden=8, intermediate=20, heads=4, kv_heads=2, head_dim=2, vocab=50)
WEIGHTS = frozenset({(8, 8), (4, 8), (20, 8), (8, 20), (50, 8), (8,)})


@pytest.mark.parametrize(
    ("name", "shapes", "kind"),
    [
        ("aten::mm", [[17, 8], [8, 20]], MLP),
        ("aten::mm", [[17, 8], [8, 40]], MLP),  # gate and up in one
        ("aten::mm", [[8, 17], [17, 8]], PROJECTIONS),
        ("aten::addmm", [[50, 8], [50, 17], [17, 8], [], []], HEAD),
        ("aten::_log_softmax", [[17, 50], [], []], HEAD_OTHER),
        ("aten::silu", [[1, 17, 20]], MLP_OTHER),
        ("aten::_flash_attention_forward", [[17, 4, 2], [17, 4, 2]], ATTENTION),
        ("aten::add_", [[20, 8], [20, 8], []], GRADIENTS),
        ("aten::mul", [[8], [1, 17, 8]], OTHER),
        ("aten::_foreach_copy_", [[[20, 8], [8, 8]], []], GRADIENTS),
        ("aten::_fused_adamw_", [[], []], OPTIMIZER),
        ("aten::pow", [[1, 17, 8], []], OTHER),
    ],
)
def test_what_an_operation_is_for(name, shapes, kind):
    assert kind_of(name, shapes, SMALL, WEIGHTS) == kind


def test_flops_of_products():
    assert product_flops("aten::mm", [[3, 4], [4, 5], [3, 5]]) == 2 * 3 * 4 * 5
    assert product_flops("aten::addmm", [[3, 5], [3, 4], [4, 5], [], []]) == 2 * 3 * 4 * 5
    assert product_flops("aten::bmm", [[2, 3, 4], [2, 4, 5]]) == 2 * 2 * 3 * 4 * 5
    assert product_flops("aten::add", [[3, 4], [3, 4]]) == 0


@pytest.mark.filterwarnings("ignore")
def test_the_products_of_an_update_are_those_of_its_flop_count():
    shape = SHAPES_BY_NAME["tiny"]
    dimensions = Dimensions.of(shape.config())
    batch = batch_of([30, 9, 17, 41], dimensions.vocab)
    bare, packs = BareLoop(shape.build("cpu"), torch.float32), packs_of(batch, 64, "cpu")
    found = profiled(lambda: bare.update(packs), dimensions, bare.model.parameters(), "cpu")
    counted = update_flops(dimensions, batch)
    assert found[HEAD].flops == counted.head  # one chunk a pack: nothing is made twice
    assert found[MLP].flops + found[PROJECTIONS].flops == counted.layers
    assert all(each.seconds > 0 for each in found.values())
