"""Names inside a checkpoint directory, and which folders this program made.

A step goes through these names; only the plain one and, where that is missing, `.replaced` are checkpoints:

    step_N.tmp        being written, or left by a kill
    step_N            complete: it got this name by one rename, after everything in it was on the disk
    step_N.replaced   the earlier one of a step that is saved again, until the new one has its name
    step_N.trash      being deleted, left by a kill, or read by a process that began before (then .trash.1 is the next)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import CheckpointError

MANIFEST = "manifest.json"
VALUES = "values.json"
MARKER = ".grpo-checkpoint"  # first file made and last one deleted: a folder that holds it may be deleted
PIN = "pin"
WRITER_LOCK = ".lock"
RUN_LOCK = ".run.lock"

TMP, REPLACED, TRASH = ".tmp", ".replaced", ".trash"
_FOLDER = re.compile(r"step_(0|[1-9][0-9]*)(?:(\.tmp|\.replaced)|(\.trash)(?:\.[1-9][0-9]*)?)?")


@dataclass(frozen=True)
class StepFolder:
    """A folder whose name has the form of a checkpoint's; `suffix` is "", ".tmp", ".replaced" or ".trash"."""

    path: Path
    step: int
    suffix: str


def step_folder(directory: Path, step: int, suffix: str = "") -> Path:
    return directory / f"step_{step}{suffix}"


def step_folders(directory: Path) -> Iterator[StepFolder]:
    """The step folders of a directory, by name; none where the directory does not exist. Links are not followed.

    Raises CheckpointError naming the directory if it is a file or cannot be read.
    """
    try:
        entries = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint folder {directory}: {error.strerror}; checkpointing.checkpoint_dir, or else "
            "logger.log_dir, must be a folder that can be read"
        ) from error
    for name in entries:
        match = _FOLDER.fullmatch(name)
        if match:
            yield StepFolder(directory / name, int(match[1]), match[2] or match[3] or "")


def free_trash(directory: Path, step: int) -> Path:
    """A name for a folder to be deleted: `.trash` is taken while somebody reads what the step was before."""
    trash, number = step_folder(directory, step, TRASH), 0
    while trash.exists():
        number += 1
        trash = step_folder(directory, step, f"{TRASH}.{number}")
    return trash


def looks_like_checkpoint(folder: Path) -> bool:
    """Whether a folder holds, or held, a checkpoint; a user's own folder of the same name holds neither file."""
    return (folder / MARKER).is_file() or (folder / MANIFEST).is_file()


def is_leftover(folder: Path) -> bool:
    """Whether a `.tmp` or `.trash` folder may be deleted: it is marked, or a kill came before or after the mark."""
    return (folder / MARKER).is_file() or not any(folder.iterdir())
