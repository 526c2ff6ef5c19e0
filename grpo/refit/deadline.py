"""When to give up waiting for the other side."""

from __future__ import annotations

from time import monotonic

_LEAST_SECONDS = 0.001  # a time-out of 0 would mean another thing


class Deadline:
    """Of all that is done since `begin` together, however many waits it has."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Something else starts now: joining, or a refit."""
        self._end = monotonic() + self.seconds

    @property
    def left_s(self) -> float:
        """Always more than nothing."""
        return max(_LEAST_SECONDS, self._end - monotonic())
