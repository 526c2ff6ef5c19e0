"""What became of one sample: its value or its kind of failure, and how that travels between processes.

A verifier's process is not trusted, so what it sends is a fixed binary layout whose every field is checked, never a
pickle.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import SupportsFloat

MAX_MESSAGE_BYTES = 800
FLOAT32_MAX = 3.4028234663852886e38  # rewards are float32 from here on: a larger one would be inf there

_FRAME = struct.Struct(">II")  # bytes of the body, index of the sample
_BODY = struct.Struct(">BBd")  # kind, whether the process must be replaced, value


class Kind(IntEnum):
    """How a sample ended; all but SCORED are counted as failures under their lower-case name."""

    SCORED = 0
    TIMEOUT = 1  # longer than the limit, killed
    CRASH = 2  # its process died, or wrote what it must not
    ERROR = 3  # raised, sys.exit included
    INVALID = 4  # returned NaN, an infinity, or no number
    MEMORY = 5  # MemoryError


class BrokenFrameError(Exception):
    """Bytes that no well-behaved process sends."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one sample. `message` says what went wrong and is empty for SCORED."""

    kind: Kind
    value: float = 0.0
    message: str = ""


def outcome_of(value: object) -> Outcome:
    """What a verifier's return value means: a finite number (of any type with `__float__`) is a score."""
    if not isinstance(value, SupportsFloat):
        return Outcome(Kind.INVALID, message=f"returned {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number) or abs(number) > FLOAT32_MAX:
        return Outcome(Kind.INVALID, message=f"returned {number}, not a finite float32")
    return Outcome(Kind.SCORED, value=number)


def frame(index: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body), index) + body


def encode(index: int, outcome: Outcome, *, replace_process: bool = False) -> bytes:
    message = outcome.message.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES]
    return frame(index, _BODY.pack(outcome.kind, replace_process, outcome.value) + message)


def decode(body: bytes) -> tuple[Outcome, bool]:
    """The outcome, and whether its process must be replaced. Raises BrokenFrameError."""
    try:
        kind, replace_process, value = _BODY.unpack_from(body)
        outcome = Outcome(Kind(kind), value, body[_BODY.size :].decode("utf-8", "replace"))
    except (struct.error, ValueError) as error:
        raise BrokenFrameError(str(error)) from error
    if not math.isfinite(value) or replace_process > 1:
        raise BrokenFrameError("fields out of range")
    return outcome, bool(replace_process)


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, max_body_bytes: int | None = None) -> None:
        self._buffer = bytearray()
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (index, body) of each frame that is complete now. Raises BrokenFrameError for one that is too long."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _FRAME.size:
                length, index = _FRAME.unpack_from(self._buffer, start)
                if self._max_body_bytes is not None and length > self._max_body_bytes:
                    raise BrokenFrameError(f"frame of {length} bytes")
                end = start + _FRAME.size + length
                if end > len(self._buffer):
                    break
                body = bytes(self._buffer[start + _FRAME.size : end])
                start = end
                yield index, body
        finally:
            del self._buffer[:start]


def outcome_reader() -> FrameReader:
    return FrameReader(_BODY.size + MAX_MESSAGE_BYTES)
