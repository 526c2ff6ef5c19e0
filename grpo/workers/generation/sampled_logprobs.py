"""Log-probs of sampled tokens: recorded as tensors while the engine steps, read once for each finished request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.errors import GenerationError

_NO_TOKEN = -1
STEPS = 256  # of the engine between two rounds of bookkeeping


@dataclass(frozen=True)
class _Step:
    """Where a step's columns belong; row -1: to nobody."""

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    uses: NDArray[np.int64]  # how often each row had been reserved when the step was recorded


def finite(logprobs: NDArray[np.float32] | Sequence[float]) -> list[float]:
    """Log-probs as a list. Raises GenerationError if one is not finite."""
    values = np.asarray(logprobs)
    if not np.isfinite(values).all():
        raise GenerationError("the model's logits are not finite: its weights have diverged")
    found: list[float] = values.tolist()
    return found


class SampledLogprobs:
    """One row for each request under way, one place for each of its tokens.

    A step of the engine costs one small copy to the host, which nobody waits for. Steps are applied in the order in
    which they were recorded, so a token that is sampled again after a preemption replaces the one that was dropped.
    What is read must be of the very tokens that the engine delivered: the recorded tokens are kept beside the
    log-probs and compared, so that a misplaced value is an error and never a wrong number.
    """

    def __init__(self, device: torch.device, columns: int, steps: int = STEPS) -> None:
        """Room for `steps` steps of at most `columns` sequences each."""
        self._on_gpu = device.type == "cuda"
        self._ring = torch.empty(steps, 2 * columns, dtype=torch.int32, pin_memory=self._on_gpu)
        self._ring_values = self._ring.numpy()
        self._events = [torch.cuda.Event() for _ in range(steps)] if self._on_gpu else []  # type: ignore[no-untyped-call]
        self._columns = columns
        self._waiting: list[_Step] = []  # in the ring from its start on
        self._applied = 0  # of those
        self._tokens = np.empty((0, 0), dtype=np.int32)
        self._logprobs = np.empty((0, 0), dtype=np.float32)
        self._uses = np.empty(0, dtype=np.int64)  # how often each row has been reserved
        self._free: list[int] = []
        self._used = 0

    def reserve(self, count: int, length: int) -> list[int]:
        """Rows for `count` requests of at most `length` tokens. Give them back with `release`."""
        if length > self._tokens.shape[1] or count > len(self._free):
            self._grow(count - len(self._free), length)
        rows = [self._free.pop() for _ in range(count)]
        self._used += count
        self._tokens[rows, :length] = _NO_TOKEN
        self._uses[rows] += 1
        return rows

    def release(self, rows: Iterable[int]) -> None:
        """Requests that are over or were given up; what is still to come of them is dropped."""
        rows = list(rows)
        self._used -= len(rows)
        self._free.extend(rows)

    def record(self, rows: NDArray[np.int64], places: NDArray[np.int64], tokens: Tensor, logprobs: Tensor) -> None:
        """A step of the engine, on the stream that made it.

        Args:
            rows: [n], -1 for a sequence that is not recorded or whose token is not kept.
            places: [n], of the token among those that its request samples.
            tokens: [n] integers on the engine's device.
            logprobs: [n] float32 there.
        """
        if len(self._waiting) == len(self._ring):
            self._apply_all()
        number, count = len(self._waiting), len(rows)
        if count > self._columns or not (len(places) == len(tokens) == len(logprobs) == count):
            raise GenerationError(
                f"the engine sampled {len(tokens)} tokens for {count} sequences, of {self._columns} at most"
            )
        both = torch.stack((tokens.to(torch.int32), logprobs.view(torch.int32)))
        self._ring[number, : 2 * count].view(2, count).copy_(both, non_blocking=True)
        if self._on_gpu:
            self._events[number].record()
        self._waiting.append(_Step(rows, places, self._uses[rows]))

    def read(self, row: int, tokens: Sequence[int]) -> list[float]:
        """Log-probs of the tokens of a request, all of which have been recorded.

        Raises:
            GenerationError: other tokens were recorded, or log-probs are not finite.
        """
        delivered, count = np.asarray(tokens, dtype=np.int32), len(tokens)
        self._apply_arrived()
        if not np.array_equal(self._tokens[row, :count], delivered):
            self._apply_all()
        if not np.array_equal(self._tokens[row, :count], delivered):
            differing = np.flatnonzero(self._tokens[row, :count] != delivered)
            raise GenerationError(
                f"log-probs were recorded for other tokens than the engine delivered: {len(differing)} of {count} "
                f"differ, the first at {differing[0]}"
            )
        return finite(self._logprobs[row, :count])

    def _apply_arrived(self) -> None:
        end = len(self._waiting)
        if self._on_gpu:
            end = self._applied
            while end < len(self._waiting) and self._events[end].query():  # type: ignore[no-untyped-call]
                end += 1
        self._apply(end)

    def _apply_all(self) -> None:
        if self._on_gpu and self._waiting:
            self._events[len(self._waiting) - 1].synchronize()
        self._apply(len(self._waiting))

    def _apply(self, end: int) -> None:
        """Steps up to `end`, with one assignment: of values for the same place the last one stays."""
        steps = self._waiting[self._applied : end]
        if steps:
            rows = np.concatenate([step.rows for step in steps])
            places = np.concatenate([step.places for step in steps])
            values = [self._ring_values[self._applied + number] for number in range(len(steps))]
            tokens = np.concatenate([each[: len(s.rows)] for each, s in zip(values, steps, strict=True)])
            logprobs = np.concatenate(
                [each[len(s.rows) : 2 * len(s.rows)] for each, s in zip(values, steps, strict=True)]
            ).view(np.float32)
            # One step too many is sampled ahead of a stop: past all places, or of a row that is another request's now.
            current = np.concatenate([step.uses for step in steps]) == self._uses[rows]
            kept = current & (rows >= 0) & (places >= 0) & (places < self._tokens.shape[1])
            rows, places = rows[kept], places[kept]
            self._tokens[rows, places] = tokens[kept]
            self._logprobs[rows, places] = logprobs[kept]
            self._applied = end
        if self._applied == len(self._waiting):
            self._waiting, self._applied = [], 0

    def _grow(self, rows: int, length: int) -> None:
        height, width = self._tokens.shape
        new_height = height if rows <= 0 else max(height + rows, 2 * height)
        shape = (new_height, max(width, length))
        tokens, logprobs = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)
        if self._used:
            tokens[:height, :width], logprobs[:height, :width] = self._tokens, self._logprobs
        self._tokens, self._logprobs = tokens, logprobs
        self._uses = np.concatenate([self._uses, np.zeros(new_height - height, dtype=np.int64)])
        self._free.extend(range(height, new_height))
