"""Stopping on a signal at the next place where the run can be saved."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted(KeyboardInterrupt):
    """A signal came before there was anything to save. `args[0]` is its name."""


class StopRequest:
    """While entered, SIGINT, SIGTERM and SIGUSR1 set `requested` instead of ending the process. Main thread only.

    The loop asks `requested` between steps, saves and leaves. A second Ctrl-C raises KeyboardInterrupt at once, also in
    the middle of a save, which then stays unfinished under its temporary name. Other repeats change nothing. The
    handlers that were there before come back on exit.

    With `at_once`, for the time before the first step, every signal raises Interrupted until `defer` is called. Should
    a library swallow that in the middle of an import, `defer` raises it again.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self.requested: str | None = None  # name of the first signal that came, such as "SIGTERM"
        self._interrupts = 0
        self._previous: dict[signal.Signals, Any] = {}

    def defer(self) -> None:
        """From now on note signals instead of raising; raises Interrupted if one has come."""
        self._at_once = False
        if self.requested is not None:
            raise Interrupted(self.requested)

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: the handler was not installed from Python and cannot be given back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number).name
        if self._at_once:
            raise Interrupted(self.requested)
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
