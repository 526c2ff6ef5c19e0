"""How fast a folder can be written; it reports, and judges nothing."""

import os
import tempfile
from pathlib import Path
from time import perf_counter

_CHUNK = b"\x5a" * (4 << 20)
_MOST_BYTES = 128 << 20
_MOST_SECONDS = 2.0


def write_rate(folder: Path) -> float:
    """10^6 bytes a second into one file, on disk at the end: up to 128 MiB or two seconds. The file is removed."""
    written = 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".canary-") as file:
        started = perf_counter()
        while written < _MOST_BYTES and perf_counter() - started < _MOST_SECONDS:
            written += file.write(_CHUNK)
        file.flush()
        os.fsync(file.fileno())
        return written / (perf_counter() - started) / 1e6
