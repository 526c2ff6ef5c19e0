"""Pinned checkpoints: those that retention never deletes."""

from __future__ import annotations

from pathlib import Path

from grpo.checkpoint import files
from grpo.checkpoint.layout import MANIFEST, PIN
from grpo.errors import CheckpointError


def pin(checkpoint: Path) -> bool:
    """Keep a checkpoint for good; whether it was not pinned before.

    Raises CheckpointError: there is none, it is being deleted, or the disk cannot be written.
    """
    try:
        with files.locked(checkpoint / MANIFEST, exclusive=False) as descriptor:
            if descriptor is None:
                raise CheckpointError(f"{checkpoint} is being deleted by retention")
            if (checkpoint / PIN).exists():
                return False
            files.write_file(checkpoint / PIN, ())
            files.sync_folder(checkpoint)
    except OSError as error:
        raise _cannot("pin", checkpoint, error) from error
    return True


def unpin(checkpoint: Path) -> bool:
    """Leave a checkpoint to retention again; whether it was pinned. Raises CheckpointError as `pin` does."""
    try:
        if not (checkpoint / PIN).exists():
            return False
        (checkpoint / PIN).unlink()
        files.sync_folder(checkpoint)
    except OSError as error:
        raise _cannot("unpin", checkpoint, error) from error
    return True


def _cannot(what: str, checkpoint: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot {what} {checkpoint}: {error.strerror or error}")
