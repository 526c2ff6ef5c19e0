"""One batch in every layout: loss, metrics, gradient norm, log-probs and updates are those of one float64 process."""

import pytest

from tests.functional.workers.policy.parity import AXES, COVERING, cells, differences, name_of, replay
from tests.support.ranks import run_cells

PRELOAD = ["tests.functional.workers.policy.parity"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_layout_gives_the_numbers_of_one_float64_process(world):
    chosen = cells(world)
    assert chosen
    answers = (
        [[replay(cell)] for cell in chosen]
        if world == 1
        else run_cells(replay, chosen, world=world, preload=PRELOAD, seconds=60)
    )
    wrong = [
        f"{name_of(cell)}: {each}"
        for cell, of_ranks in zip(chosen, answers, strict=True)
        for each in differences(cell, of_ranks)
    ]
    assert not wrong, "\n".join(wrong[:30])


def test_every_pair_of_values_is_in_some_cell():
    pairs = {((a, x), (b, y)) for cell in COVERING for a, x in cell.items() for b, y in cell.items() if a < b}
    wanted = sum(len(AXES[a]) * len(AXES[b]) for a in AXES for b in AXES if a < b)
    assert len(pairs) == wanted
