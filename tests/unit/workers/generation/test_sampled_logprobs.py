"""The record of log-probs against a plain dictionary, over orders of steps that an engine may take."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.errors import GenerationError
from grpo.workers.generation.sampled_logprobs import SampledLogprobs, finite

CPU = torch.device("cpu")


def record(recorder: SampledLogprobs, step: list[tuple[int, int, int, float]]) -> None:
    rows, places, tokens, logprobs = (list(each) for each in zip(*step, strict=True))
    recorder.record(
        np.array(rows, dtype=np.int64), np.array(places, dtype=np.int64), torch.tensor(tokens), torch.tensor(logprobs)
    )


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(-1, 4), st.integers(0, 6), st.integers(0, 99), st.floats(-20, 0, width=32)),
            min_size=1,
            max_size=5,
            unique_by=lambda entry: entry[0] if entry[0] >= 0 else entry,
        ),
        max_size=30,
    ),
    st.integers(1, 7),
)
@settings(max_examples=150, deadline=None)
def test_the_last_value_of_each_place_is_read(steps, ring):
    """Places come in any order and again; -1 belongs to nobody; the ring is full after any number of steps."""
    recorder = SampledLogprobs(CPU, columns=6, steps=ring)
    rows = recorder.reserve(5, 7)
    expected: dict[tuple[int, int], tuple[int, float]] = {}
    for step in steps:
        placed = [(rows[row] if row >= 0 else -1, place, token, value) for row, place, token, value in step]
        record(recorder, placed)
        expected |= {(row, place): (token, value) for row, place, token, value in placed if row >= 0}
    for row in rows:
        length = next(place for place in range(8) if (row, place) not in expected)
        tokens = [expected[row, place][0] for place in range(length)]
        assert recorder.read(row, tokens) == [expected[row, place][1] for place in range(length)]


def test_rows_are_used_again_and_what_comes_late_for_them_is_dropped():
    recorder = SampledLogprobs(CPU, columns=4, steps=8)
    (row,) = recorder.reserve(1, 3)
    record(recorder, [(row, 0, 5, -0.5)])
    recorder.release([row])
    record(recorder, [(row, 1, 6, -0.6), (-1, 0, 9, -9.0)])  # sampled ahead of its end
    assert recorder.reserve(1, 3) == [row]
    record(recorder, [(row, 0, 7, -0.7)])
    record(recorder, [(row, 1, 8, -0.8)])
    assert recorder.read(row, [7, 8]) == pytest.approx([-0.7, -0.8])


def test_a_step_that_arrives_after_its_row_was_given_to_another_request_is_dropped(monkeypatch):
    """On a GPU steps arrive later than they are recorded; here all are kept back until they are needed."""
    recorder = SampledLogprobs(CPU, columns=4, steps=8)
    monkeypatch.setattr(recorder, "_apply_arrived", lambda: None)
    (row,) = recorder.reserve(1, 3)
    record(recorder, [(row, 0, 5, -0.5)])
    assert recorder.read(row, [5]) == [-0.5]
    record(recorder, [(row, 1, 6, -0.6)])  # sampled ahead of its end
    recorder.release([row])
    assert recorder.reserve(1, 3) == [row]
    recorder._apply_all()
    record(recorder, [(row, 0, 7, -0.75)])
    record(recorder, [(row, 1, 6, -0.25)])  # the same token at the same place
    assert recorder.read(row, [7, 6]) == [-0.75, -0.25]
    (other,) = recorder.reserve(1, 3)
    record(recorder, [(other, 0, 7, -0.5)])
    recorder.release([row])
    assert recorder.reserve(1, 3) == [row]
    with pytest.raises(GenerationError, match="1 of 1 differ"):
        recorder.read(row, [6])


def test_it_grows_while_rows_are_in_use():
    recorder = SampledLogprobs(CPU, columns=4, steps=2)
    (first,) = recorder.reserve(1, 2)
    record(recorder, [(first, 0, 1, -0.25)])
    assert recorder.read(first, [1]) == [-0.25]
    more = recorder.reserve(9, 50)
    assert len({first, *more}) == 10
    record(recorder, [(more[8], 49, 3, -3.0), (first, 1, 2, -0.5), (first, 70, 2, -0.5)])  # 70: past all rows
    assert recorder.read(first, [1, 2]) == [-0.25, -0.5]


def test_tokens_that_were_not_recorded_are_an_error():
    recorder = SampledLogprobs(CPU, columns=4)
    (row,) = recorder.reserve(1, 5)
    record(recorder, [(row, 0, 1, -0.25)])
    record(recorder, [(row, 1, 2, -0.5)])
    with pytest.raises(GenerationError, match=r"1 of 2 differ, the first at 1"):
        recorder.read(row, [1, 7])
    with pytest.raises(GenerationError, match=r"1 of 3 differ, the first at 2"):
        recorder.read(row, [1, 2, 3])
    recorder.release([row])
    (row,) = recorder.reserve(1, 5)
    with pytest.raises(GenerationError, match="2 of 2 differ"):  # of the request before
        recorder.read(row, [1, 2])


def test_a_step_of_another_size_than_its_batch_is_an_error():
    recorder = SampledLogprobs(CPU, columns=2)
    two = np.zeros(2, dtype=np.int64)
    with pytest.raises(GenerationError, match="3 tokens for 2 sequences"):
        recorder.record(two, two, torch.zeros(3), torch.zeros(3))
    three = np.zeros(3, dtype=np.int64)
    with pytest.raises(GenerationError, match="of 2 at most"):
        recorder.record(three, three, torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_values_that_are_not_finite_are_an_error(value):
    recorder = SampledLogprobs(CPU, columns=2)
    (row,) = recorder.reserve(1, 5)
    record(recorder, [(row, 0, 1, value)])
    with pytest.raises(GenerationError, match="not finite"):
        recorder.read(row, [1])
    with pytest.raises(GenerationError, match="not finite"):
        finite([-1.0, value])
