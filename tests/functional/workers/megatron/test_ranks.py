"""What several ranks of the Megatron policy do beyond the numbers of the parity matrix."""

import numpy as np
import pytest
import torch

from tests.support.megatron_ranks import export_model, run
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
CUT = [Layout("megatron", 1, 2, 1, True), Layout("megatron", 1, 1, 2, False)]
LOGITS = {"batching": "packed", "micro": 4, "extra": "kl and entropy", "chunk": 3}
EXPORTS = {
    f"{name}, {'tied' if tied else 'untied'}": {**PLAIN, "layout": layout, "tied": tied}
    for name, layout in zip(("tensor", "pipeline"), CUT, strict=True)
    for tied in (True, False)
}
REDUCED = ["distributed", "all-reduce"]


@pytest.fixture(scope="module")
def answers():
    """Of all checks, each once: starting two processes costs more than any of them."""
    data = Layout("megatron", 2, 1, 1, False)
    checks = {
        **{
            f"not finite {state}": ("refuse_nan", {**PLAIN, "state": state, "layout": layout})
            for state, layout in LAYOUTS.items()
        },
        **{f"logits {each}": ("widest_logits", {**PLAIN, **LOGITS, "layout": each}) for each in CUT},
        **{f"reductions {each}": ("reductions", {**PLAIN, "layout": data, "state": each}) for each in REDUCED},
        **{f"export {name}": ("export", cell) for name, cell in EXPORTS.items()},
    }
    results = run_cells(run, list(checks.values()), world=2, preload=PRELOAD, seconds=30)
    return dict(zip(checks, results, strict=True))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("state", LAYOUTS)
def test_a_gradient_that_is_not_finite_is_refused_on_every_rank_and_changes_nothing(answers, state):
    messages = answers[f"not finite {state}"]
    assert all(
        message.startswith("update 2: the gradient norm is nan over 36 trained tokens") for message in messages
    ), messages


@pytest.mark.parametrize("layout", CUT, ids=str)
def test_no_rank_holds_float32_logits_beyond_a_chunk_nor_anyone_elses(answers, layout):
    shapes = [shape for each in answers[f"logits {layout}"] for shape in each]
    assert max(rows for rows, _ in shapes) == 3
    if layout.tensor == 2:
        assert all(width < VOCABULARY for _, width in shapes)


@pytest.mark.parametrize("state", REDUCED)
def test_gradients_of_bfloat16_passes_are_summed_over_ranks_in_float32(answers, state):
    """A buffer or a message in bfloat16 would leave no element finer than that."""
    for passed, dtype, used, finer in answers[f"reductions {state}"]:
        assert passed == {torch.bfloat16}
        assert dtype == torch.float32
        assert used > 0.5
        assert finer > 0.3


@pytest.mark.parametrize("layout", EXPORTS)
def test_every_rank_is_given_each_weight_once_and_holds_few_of_them(answers, layout):
    model = export_model(tied=EXPORTS[layout]["tied"])
    expected = {name: each.detach().numpy() for name, each in model.named_parameters()}
    largest, whole = (of(each.nbytes for each in expected.values()) for of in (max, sum))
    for sent, peak in answers[f"export {layout}"]:
        assert sorted(name for name, _ in sent) == sorted(expected)
        for name, value in sent:
            assert np.array_equal(value, expected[name]), name
        # A parameter may be two matrices: the ranks' parts of it, the whole, and the matrices made of that.
        assert largest < peak <= 6 * largest < whole / 4
