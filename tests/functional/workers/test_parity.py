"""One batch in every layout of both backends: loss, metrics, gradient norm, log-probs and updates are those of one
float64 process that shares no code with them."""

import pytest

from tests.support.parity import LAYOUTS, covering, faults, name_of, name_of_value, of_layout, of_world, product, replay
from tests.support.ranks import try_cells

PRELOAD = ["tests.support.parity", "tests.support.pytorch_ranks", "tests.support.megatron_ranks"]


def check(cells, world, request):
    """All of the cells, though some fail; the run's report (`--junitxml`) has a property for each."""
    assert cells
    wrong = {}
    for cell, outcome in try_cells(replay, cells, world=world, preload=PRELOAD, seconds=60):
        found = faults(cell, outcome)
        request.node.user_properties.append((name_of(cell), "; ".join(found) or "passed"))
        if found:
            wrong[name_of(cell)] = found
    lines = [f"{name}: {each}" for name, found in wrong.items() for each in found]
    assert not wrong, f"{len(wrong)} of {len(cells)} cells:\n" + "\n".join(lines[:30])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_layout_gives_the_numbers_of_one_float64_process(world, request):
    check(of_world(covering(), world), world, request)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", sorted(LAYOUTS, key=lambda layout: -layout.world), ids=name_of_value)
def test_the_full_product_gives_the_numbers_of_one_float64_process(layout, request):
    check(of_layout(product(), layout), layout.world, request)
