"""What a run has submitted, line by line on disk, so that another pytest with the same run id finds it."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "jobs.jsonl"
LOCK = "lock"
SCHEMA_VERSION = 1


class LedgerError(RuntimeError):
    """A run's folder that cannot be used."""


@dataclass(frozen=True)
class Entry:
    """One submission. The first of two lines has no job id: it was written before sbatch was called."""

    case: str
    attempt: int
    restarts: int
    executor: str
    exclude: tuple[str, ...] = ()
    job_id: str | None = None


class Ledger:
    """The file in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def write(self, entry: Entry) -> None:
        """Append, and see to it that the line is on disk: the job outlives this process."""
        line = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(entry)})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[str, list[Entry]]:
        """The submissions of each case, in order. Raises LedgerError for a line that cannot be read."""
        if not self.path.is_file():
            return {}
        found: dict[str, list[Entry]] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                break  # cut off by the end of the process that wrote it, before sbatch was called
            try:
                value = json.loads(line)
                version = value.pop("schema_version")
                entry = Entry(**{**value, "exclude": tuple(value["exclude"])})
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise LedgerError(f"{self.path}:{number}: not a line of a run's jobs ({error})") from error
            if version != SCHEMA_VERSION:
                raise LedgerError(
                    f"{self.path}:{number}: schema_version {version}; this version reads {SCHEMA_VERSION}"
                )
            found.setdefault(entry.case, []).append(entry)
        return found


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One pytest at a time for a run. Raises LedgerError naming the other."""
    path = folder / LOCK
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise LedgerError(f"{folder}: another pytest waits for this run ({holder})") from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
