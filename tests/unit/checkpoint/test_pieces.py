import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.checkpoint.pieces import Piece, common_box, flat_boxes, piece_key, untiled, whole_pieces


def test_a_piece_knows_its_box_and_its_name_in_a_file():
    piece = Piece("w", (4, 6), (0, 2), torch.zeros(4, 3))
    assert (piece.stop, piece.is_whole, piece.key) == ((4, 5), False, "w[0:4,2:5]")
    (whole,) = whole_pieces({"w": torch.zeros(4, 6)})
    assert (whole.start, whole.is_whole, whole.key) == ((0, 0), True, "w")
    (scalar,) = whole_pieces({"step": torch.tensor(3)})
    assert (scalar.shape, scalar.is_whole, scalar.key) == ((), True, "step")
    assert piece_key("w", [0, 4], [0, 0], [0, 4]) == "w"


def test_where_boxes_meet():
    assert common_box((0, 2), (4, 5), (3, 0), (9, 3)) == ((3, 4), (2, 3))
    assert common_box((0,), (4,), (4,), (5,)) is None
    assert common_box((), (), (), ()) == ()


@pytest.mark.parametrize(
    ("shape", "boxes", "problem"),
    [
        ((4, 2), [((0, 0), (4, 2))], None),
        ((4, 2), [((0, 0), (1, 2)), ((1, 0), (4, 1)), ((1, 1), (4, 2))], None),
        ((4, 2), [((0, 0), (4, 2)), ((4, 0), (4, 2))], None),
        ((), [((), ())], None),
        ((0,), [((0,), (0,))], None),
        ((0,), [], None),
        ((), [], "0 elements"),
        ((), [((), ()), ((), ())], "2 elements"),
        ((4, 2), [((0, 0), (3, 2))], "6 elements"),
        ((4, 2), [((0, 0), (2, 2)), ((1, 0), (3, 2))], "overlap"),
        ((4, 2), [((0, 0), (5, 2))], "outside"),
        ((4, 2), [((-1, 0), (3, 2))], "outside"),
        ((4, 2), [((0,), (4,))], "outside"),
        ((4,), [((3,), (1,)), ((0,), (4,))], "outside"),
    ],
)
def test_pieces_make_up_a_tensor_or_it_is_said_why_not(shape, boxes, problem):
    found = untiled(shape, boxes)
    assert found is None if problem is None else problem in found


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 40))
def test_a_flat_range_is_at_most_three_boxes_that_hold_its_elements_in_order(width, one, other):
    start, stop = sorted((one, other))
    rows = torch.arange(50 * width).view(50, width)
    found = list(flat_boxes(start, stop, width))
    assert len(found) <= 3
    elements = []
    for first, end, (row, last_row), (column, last_column) in found:
        box = rows[row:last_row, column:last_column].flatten().tolist()
        assert box == list(range(first, end))
        elements += box
    assert elements == list(range(start, stop))
