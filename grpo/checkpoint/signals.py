"""Stopping on a signal at the next place where the run can be saved, or in time for the save."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted(KeyboardInterrupt):
    """A signal came before there was anything to save. `args[0]` is its name."""


class Abandoned(KeyboardInterrupt):
    """What an `abandonable` block did is given up: it would have left no time to save."""


class StopRequest:
    """While entered, SIGINT, SIGTERM and SIGUSR1 set `requested` instead of ending the process. Main thread only.

    The loop asks `requested` between steps, saves and leaves. A second Ctrl-C raises KeyboardInterrupt at once, also in
    the middle of a save, which then stays unfinished under its temporary name. Other repeats change nothing. The
    handlers that were there before come back on exit.

    With `at_once`, for the time before the first step, every signal raises Interrupted until `defer` is called. Should
    a library swallow that in the middle of an import, `defer` raises it again.

    `started` is the instant of `time.monotonic` from which a time limit of the run counts; by default, now.
    """

    def __init__(self, *, at_once: bool = False, started: float | None = None) -> None:
        self._at_once = at_once
        self.started = time.monotonic() if started is None else started
        self.requested: str | None = None  # name of the first signal that came, such as "SIGTERM"
        self.requested_at: float | None = None  # of time.monotonic
        self._interrupts = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._latest: Callable[[], float] | None = None
        self._abandoned = False
        self._hopeless = False
        self._undivided = False
        self._waking = threading.Lock()

    def defer(self) -> None:
        """From now on note signals instead of raising; raises Interrupted if one has come.

        Takes the signals back from a library that claimed them in the meantime, as Ray does when it starts.
        """
        self._at_once = False
        for number in self._previous:
            signal.signal(number, self._handle)
        if self.requested is not None:
            raise Interrupted(self.requested)

    def raised(self, error: KeyboardInterrupt) -> str | None:
        """The signal that raised `error` before anything could be saved; None for an interrupt of another origin."""
        return self.requested if self._at_once or isinstance(error, Interrupted) else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let what belongs together happen whole: a signal that comes in the block raises, if at all, at its end."""
        at_once, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = at_once
        if at_once and self.requested is not None:
            raise Interrupted(self.requested)

    @contextmanager
    def abandonable(self, latest: Callable[[], float]) -> Iterator[None]:
        """Raise Abandoned in the block at the instant `latest()` of `time.monotonic`, or at its end when that is past.

        `latest` is asked at the start, at every signal and at the end; infinity is never. Should something swallow the
        exception in the middle of the block, its end raises it again. An exception of the block itself goes on.
        """
        assert self._latest is None, "abandonable blocks do not nest"
        previous = signal.signal(signal.SIGALRM, self._alarm)  # before `give_up` sees a block: it sends that signal
        try:
            self._latest, self._abandoned = latest, False
            self._check()
            yield
            if self._abandoned or self._hopeless or time.monotonic() >= latest():
                raise Abandoned
        except KeyboardInterrupt as error:
            # Ray turns whatever a handler raises into one of its own making.
            if self._abandoned and not isinstance(error, Abandoned):
                raise Abandoned from error
            raise
        finally:
            try:
                self._close(previous)
            finally:  # Abandoned may come in the middle of it, but comes only once
                self._close(previous)

    def give_up(self) -> None:
        """Have the block that the main thread is in, and every later one, raise Abandoned at once. From any thread."""
        self._hopeless = True
        with self._waking:
            if self._latest is not None:
                # A signal of its own, so that a call of the system in which the main thread waits returns.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """What an `abandonable` block does not give up half done: Abandoned is raised after it, if at all."""
        self._undivided = True
        try:
            yield
        finally:
            self._undivided = False
        self._check()

    def ignore(self) -> None:
        """Let no further SIGTERM or SIGUSR1 change the exit code of a run that has ended, also after the exit."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # Not SIG_IGN, which processes that are started later would inherit.
            signal.signal(number, _nothing)
            self._previous.pop(number, None)

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
            self.requested_at = time.monotonic()
        if self._at_once:
            raise Interrupted(self.requested)
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
        self._check()

    def _close(self, previous: Any) -> None:
        with self._waking:  # no one sends SIGALRM when it is not handled here any more
            self._latest = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    def _alarm(self, _number: int, _frame: FrameType | None) -> None:
        self._check()

    def _check(self) -> None:
        """Give the block up if its time is over, else be woken when it is."""
        if self._latest is None or self._abandoned or self._undivided:
            return
        left = self._latest() - time.monotonic()
        if left <= 0 or self._hopeless:
            self._abandoned = True
            raise Abandoned
        if math.isfinite(left):
            # A timer of the kernel: starting a thread inside a handler could wait for a lock that this thread holds.
            signal.setitimer(signal.ITIMER_REAL, left)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    return
