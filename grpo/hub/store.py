"""The folder in which `grpo fetch` keeps models and datasets, and from which runs read without a network.

    GRPO_HOME/models/ORG--NAME/pin.json           which commit each requested revision is
    GRPO_HOME/models/ORG--NAME/COMMIT/            files of a whole model
    GRPO_HOME/models/ORG--NAME/COMMIT-tokenizer/  configuration and tokenizer alone
    GRPO_HOME/datasets/ORG--NAME/...              likewise

A folder named for its commit is complete: it is filled under another name and then renamed.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from grpo.errors import DataError

Contents = Literal["model", "tokenizer", "dataset"]
DEFAULT_REVISION = "main"
_TREES = {"model": "models", "tokenizer": "models", "dataset": "datasets"}


def store_home() -> Path:
    """`GRPO_HOME`; else `grpo` in `XDG_CACHE_HOME`, which is `~/.cache` where it is not set."""
    named = os.environ.get("GRPO_HOME")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "grpo"


def local_folder(name: str) -> Path | None:
    """The folder of that path, where there is one; a name of the hub may look the same."""
    folder = Path(name).expanduser()
    return folder if name and folder.is_dir() else None


@dataclass(frozen=True)
class Pin:
    """What is known about a stored repository. `pin.json` holds these fields."""

    name: str
    licence: str | None = None
    gated: bool = False
    revisions: dict[str, str] = field(default_factory=dict)  # requested revision -> commit


def repository_folder(contents: Contents, name: str) -> Path:
    """Where everything about a repository is kept."""
    return store_home() / _TREES[contents] / name.replace("/", "--")


def commit_folder(contents: Contents, name: str, commit: str) -> Path:
    """Where the files of a commit are kept."""
    return repository_folder(contents, name) / (f"{commit}-tokenizer" if contents == "tokenizer" else commit)


def read_pin(contents: Contents, name: str) -> Pin | None:
    """The pin of a repository, None where nothing of it is stored. Raises DataError for a file that is no pin."""
    path = repository_folder(contents, name) / "pin.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Pin(**values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, OSError) as error:
        raise DataError(f"{path}: not a pin that can be read ({error}); remove it and run grpo fetch again") from error


def write_pin(contents: Contents, pin: Pin) -> None:
    """Replace the pin of a repository in one stroke."""
    path = repository_folder(contents, pin.name) / "pin.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"pin.json.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(pin), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def stored_commit(contents: Contents, name: str, revision: str | None = None) -> str | None:
    """The commit that `revision` (None: main) was when it was stored; a commit stands for itself."""
    pin = read_pin(contents, name)
    if pin is None:
        return None
    wanted = revision or DEFAULT_REVISION
    if wanted in pin.revisions:
        return pin.revisions[wanted]
    if revision is None and len(set(pin.revisions.values())) == 1:
        return next(iter(pin.revisions.values()))
    return wanted if wanted in pin.revisions.values() else None


def stored_folder(contents: Contents, name: str, revision: str | None = None) -> Path | None:
    """The complete folder of a stored repository. A whole model serves as its own tokenizer."""
    commit = stored_commit(contents, name, revision)
    if commit is None:
        return None
    candidates: tuple[Contents, ...] = ("model", "tokenizer") if contents == "tokenizer" else (contents,)
    folders = (commit_folder(candidate, name, commit) for candidate in candidates)
    return next((folder for folder in folders if folder.is_dir()), None)


def stored_model(name: str, revision: str | None = None) -> Path | None:
    """The folder of a stored model or, where only that was fetched, of its configuration and tokenizer."""
    return stored_folder("model", name, revision) or stored_folder("tokenizer", name, revision)


def stored_dataset(name: str, revision: str | None = None) -> Path | None:
    """The folder of a stored dataset."""
    return stored_folder("dataset", name, revision)
