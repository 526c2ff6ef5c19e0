"""A process that makes no progress ends itself, and leaves its stacks where it writes its errors."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_SECONDS = 60.0  # whoever waits for a call finds the cause and ends the process first, unless it hangs itself
_AT_ONCE = 1e-3
_STANDARD_ERROR = 2  # as the system has it: `sys.stderr` may be no file

_lock = threading.Lock()
_ends: dict[object, float] = {}


@contextmanager
def watched(limit_s: float) -> Iterator[None]:
    """A block that may take `limit_s` seconds; blocks may nest, and run at once on several threads.

    After that the stacks of all threads go to standard error and the process exits with status 1, at once and without
    cleaning up: also if a thread holds the interpreter.
    """
    block = object()
    with _lock:
        _ends[block] = time.monotonic() + limit_s
        _arm()
    try:
        yield
    finally:
        with _lock:
            del _ends[block]
            _arm()


def _arm() -> None:
    """For the block that ends first: a process has one such clock."""
    if _ends:
        left = min(_ends.values()) - time.monotonic()
        faulthandler.dump_traceback_later(max(_AT_ONCE, left), exit=True, file=_STANDARD_ERROR)
    else:
        faulthandler.cancel_dump_traceback_later()
