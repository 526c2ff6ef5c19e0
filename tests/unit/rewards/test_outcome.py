import math
import struct
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.rewards.outcome import (
    MAX_MESSAGE_BYTES,
    BrokenFrameError,
    FrameReader,
    Kind,
    Outcome,
    decode,
    encode,
    frame,
    outcome_of,
    outcome_reader,
)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0), (True, 1.0), (-0.5, -0.5), (Fraction(1, 4), 0.25), (Decimal("0.5"), 0.5), (3.4e38, 3.4e38),
        (np.float32(0.5), 0.5), (np.bool_(True), 1.0), (torch.tensor(2.0), 2.0),
    ],
)  # fmt: skip
def test_finite_numbers_of_any_type_are_scores(value, number):
    assert outcome_of(value) == Outcome(Kind.SCORED, number)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 3.5e38, -1e300, None, "1", [1.0], 1j, np.float64("nan")]
)
def test_everything_else_is_invalid(value):
    outcome = outcome_of(value)
    assert outcome.kind is Kind.INVALID
    assert outcome.message.startswith("returned ")


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=40))),
    st.integers(1, 17),
)
def test_frames_survive_any_cut(frames, size):
    stream = b"".join(frame(index, body) for index, body in frames)
    reader = FrameReader()
    read = [each for start in range(0, len(stream), size) for each in reader.feed(stream[start : start + size])]
    assert read == frames


@given(st.sampled_from(Kind), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans())
def test_outcome_survives_the_way(kind, value, message, replace):
    [(index, body)] = outcome_reader().feed(encode(5, Outcome(kind, value, message), replace_process=replace))
    outcome, replaced = decode(body)
    assert (index, outcome.kind, outcome.value, replaced) == (5, kind, value, replace)
    if len(message.encode("utf-8", "replace")) <= MAX_MESSAGE_BYTES:
        assert outcome.message == message.encode("utf-8", "replace").decode()


def test_long_message_is_cut():
    [(_, body)] = outcome_reader().feed(encode(0, Outcome(Kind.ERROR, message="é" * 10_000)))
    assert len(decode(body)[0].message) <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 64,
        struct.pack(">BBd", 77, 0, 0.0),
        struct.pack(">BBd", Kind.SCORED, 2, 0.0),
        struct.pack(">BBd", Kind.SCORED, 0, math.nan),
        struct.pack(">BBd", Kind.SCORED, 0, math.inf),
    ],
)
def test_what_no_process_of_ours_sends_is_refused(body):
    with pytest.raises(BrokenFrameError):
        decode(body)


def test_frame_that_is_too_long_is_refused_before_it_is_read():
    with pytest.raises(BrokenFrameError):
        list(outcome_reader().feed(struct.pack(">II", 1 << 30, 0)))
