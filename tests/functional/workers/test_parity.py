"""One batch in every layout of both backends: loss, metrics, gradient norm, log-probs and updates are those of one
float64 process that shares no code with them."""

import pytest

from tests.support.parity import covering, differences, name_of, of_world, product, replay
from tests.support.ranks import run_cells

PRELOAD = ["tests.support.parity", "tests.support.pytorch_ranks", "tests.support.megatron_ranks"]


def check(cells, world):
    chosen = of_world(cells, world)
    assert chosen
    answers = run_cells(replay, chosen, world=world, preload=PRELOAD, seconds=60)
    wrong = [
        f"{name_of(cell)}: {each}"
        for cell, of_ranks in zip(chosen, answers, strict=True)
        for each in differences(cell, of_ranks)
    ]
    assert not wrong, f"{len(wrong)} faults in {len(chosen)} cells:\n" + "\n".join(wrong[:30])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_layout_gives_the_numbers_of_one_float64_process(world):
    check(covering(), world)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
def test_the_full_product_gives_the_numbers_of_one_float64_process(world):
    check(product(), world)
