"""A process that makes no progress ends itself, and leaves its stacks where it writes its errors."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_SECONDS = 60.0  # whoever waits for a call finds the cause and ends the process first, unless it hangs itself


@contextmanager
def watched(limit_s: float) -> Iterator[None]:
    """A block that may take `limit_s` seconds.

    After that the stacks of all threads go to standard error and the process exits with status 1, at once and without
    cleaning up: also if a thread holds the interpreter. Blocks do not nest: the last to begin counts.
    """
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
