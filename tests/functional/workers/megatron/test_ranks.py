"""What several ranks of the Megatron policy do beyond the numbers of the parity matrix."""

import pytest

from tests.support.megatron_ranks import refuse_nan, widest_logits
from tests.support.parity import AXES, Layout
from tests.support.policy import VOCABULARY
from tests.support.ranks import run_cells

PRELOAD = ["tests.support.megatron_ranks"]
PLAIN = {name: values[0] for name, values in AXES.items()} | {"micro": 2, "tied": True}
LAYOUTS = {
    "distributed, overlapped": Layout("megatron", 2, 1, 1, False),
    "distributed": Layout("megatron", 1, 1, 2, False),
    "all-reduce": Layout("megatron", 1, 2, 1, True),
}


@pytest.mark.timeout(200)
def test_a_gradient_that_is_not_finite_is_refused_on_every_rank_and_changes_nothing():
    cells = [{**PLAIN, "state": state, "layout": layout} for state, layout in LAYOUTS.items()]
    for messages in run_cells(refuse_nan, cells, world=2, preload=PRELOAD, seconds=30):
        assert all(
            message.startswith("update 2: the gradient norm is nan over 36 trained tokens") for message in messages
        ), messages


@pytest.mark.timeout(200)
def test_no_rank_holds_float32_logits_beyond_a_chunk_nor_anyone_elses():
    layouts = [Layout("megatron", 1, 2, 1, True), Layout("megatron", 1, 1, 2, False)]
    cells = [
        {**PLAIN, "layout": each, "batching": "packed", "micro": 4, "extra": "kl and entropy", "chunk": 3}
        for each in layouts
    ]
    results = run_cells(widest_logits, cells, world=2, preload=PRELOAD, seconds=30)
    for cell, ranks in zip(cells, results, strict=True):
        shapes = [shape for each in ranks for shape in each]
        assert max(rows for rows, _ in shapes) == 3
        if cell["layout"].tensor == 2:
            assert all(width < VOCABULARY for _, width in shapes)
