"""`grpo fetch`: the one place that uses the network. It stores what a recipe names at commits that it records."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants

from grpo.errors import GrpoError
from grpo.hub.failures import FetchError, explained
from grpo.hub.plan import Item
from grpo.hub.selection import wanted_files
from grpo.hub.store import (
    DEFAULT_REVISION,
    Pin,
    commit_folder,
    read_pin,
    stored_commit,
    stored_folder,
    write_pin,
)

__all__ = ["FetchError", "Remote", "fetch"]

_REQUEST_TIMEOUT_S = 30.0
_SPARE_BYTES = 64 << 20  # left free on the disk


@dataclass(frozen=True)
class Remote:
    """What the hub says about a repository at one commit."""

    item: Item
    commit: str
    licence: str | None
    gated: bool
    page: str  # where its licence is shown and access is asked for
    files: dict[str, int]  # wanted path -> bytes

    @property
    def size(self) -> int:
        return sum(self.files.values())


def fetch(items: Sequence[Item], say: Callable[[str], None], *, update: bool = False) -> list[Path]:
    """Store `items` and return their folders.

    A revision that was resolved before keeps its commit, unless `update`. Everything is looked up, and its size held
    against the free disk space, before the first download. Files that were complete when a download was cut short are
    kept for the next call.

    Args:
        items: of `plan_fetch`.
        say: takes the lines to show: licence, gate page, size and destination of each repository.
        update: look up again what branches and tags point to.

    Raises:
        FetchError: no network, no such repository or revision, no access, nothing usable in it, no space. The message
            says what to do, and holds no token.

    """
    if constants.is_offline_mode():
        raise FetchError("the environment says to stay offline; unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE to fetch")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="grpo")
    remotes = []
    for item in items:
        folder = None if update else stored_folder(item.contents, item.name, item.revision)
        if folder is not None:
            say(f"{item.name} ({item.key}): stored already in {folder}")
            continue
        remote = _look_up(api, item, update=update)
        for line in _lines(remote):
            say(line)
        remotes.append(remote)
    _check_space([remote for remote in remotes if not _folder(remote).is_dir()])
    for remote in remotes:
        _store(api, remote)
        say(f"{remote.item.name}: stored in {_folder(remote)}")
    found = [stored_folder(item.contents, item.name, item.revision) for item in items]
    return [folder for folder in found if folder is not None]


def _look_up(api: HfApi, item: Item, *, update: bool) -> Remote:
    revision = item.revision or DEFAULT_REVISION
    known = None if update else stored_commit(item.contents, item.name, item.revision)
    page = f"{api.endpoint}/{'datasets/' if item.contents == 'dataset' else ''}{item.name}"
    with explained(item, page):
        info: Any = api.repo_info(
            item.name,
            repo_type=_repo_type(item),
            revision=known or revision,
            files_metadata=True,
            timeout=_REQUEST_TIMEOUT_S,
        )
        if info.gated:
            api.auth_check(item.name, repo_type=_repo_type(item))
    files = wanted_files({file.rfilename: file.size or 0 for file in info.siblings}, item.contents)
    if not files:
        raise FetchError(f"{item.key}={item.name}: {_nothing_usable(item)} at {page}")
    tags = (tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:"))
    return Remote(item, info.sha, next(tags, None), bool(info.gated), page, files)


def _nothing_usable(item: Item) -> str:
    if item.contents == "dataset":
        return "there are no data files (Parquet, JSON, CSV, text, Arrow; datasets made by Python scripts are not read)"
    if item.contents == "tokenizer":
        return "there is no config.json"
    return "there are no safetensors with a config.json (pickled weights such as .bin and .pt are not read)"


def _lines(remote: Remote) -> list[str]:
    gate = f"gated, access granted; its terms: {remote.page}" if remote.gated else f"not gated; {remote.page}"
    return [
        f"{remote.item.name} ({remote.item.key}) at commit {remote.commit}",
        f"  licence {remote.licence or 'not stated'}; {gate}",
        f"  {len(remote.files)} files, {_size(remote.size)} -> {_folder(remote)}",
    ]


def _check_space(remotes: Sequence[Remote]) -> None:
    """Free space against all that is still to come."""
    if not remotes:
        return
    folder = _folder(remotes[0]).parent
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    present = sum(_present(remote) for remote in remotes)
    wanted = sum(remote.size for remote in remotes) - present
    free = shutil.disk_usage(existing).free
    if wanted + _SPARE_BYTES > free:
        raise FetchError(
            f"{_size(wanted)} are to be stored in {folder}, and the disk has {_size(free)} free; make room, or set "
            "GRPO_HOME to a folder on a larger disk"
        )


def _present(remote: Remote) -> int:
    """Bytes of the files that an earlier call completed."""
    paths = (_partial(remote) / path for path in remote.files)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _store(api: HfApi, remote: Remote) -> None:
    item, folder, partial = remote.item, _folder(remote), _partial(remote)
    try:
        if not folder.is_dir():
            partial.mkdir(parents=True, exist_ok=True)
            with explained(item, remote.page):
                for path in sorted(remote.files):
                    api.hf_hub_download(
                        item.name, path, repo_type=_repo_type(item), revision=remote.commit, local_dir=partial
                    )
            _check_sizes(remote, partial)
            shutil.rmtree(partial / ".cache")  # the downloader's bookkeeping
            partial.rename(folder)
        pin = read_pin(item.contents, item.name) or Pin(item.name)
        revisions = {**pin.revisions, item.revision or DEFAULT_REVISION: remote.commit}
        write_pin(item.contents, replace(pin, licence=remote.licence, gated=remote.gated, revisions=revisions))
    except GrpoError:
        raise
    except OSError as error:
        raise FetchError(
            f"{item.name}: cannot be written to {folder.parent}: {error.strerror or error}; make room or set GRPO_HOME "
            "to a folder that can be written, then run the command again: it continues where it stopped"
        ) from error


def _check_sizes(remote: Remote, folder: Path) -> None:
    for path, size in remote.files.items():
        found = (folder / path).stat().st_size
        if found != size:
            (folder / path).unlink()
            raise FetchError(f"{remote.item.name}: {path} has {found} bytes and not {size}; run the command again")


def _folder(remote: Remote) -> Path:
    return commit_folder(remote.item.contents, remote.item.name, remote.commit)


def _partial(remote: Remote) -> Path:
    folder = _folder(remote)
    return folder.with_name(folder.name + ".partial")


def _repo_type(item: Item) -> str:
    return "dataset" if item.contents == "dataset" else "model"


def _size(count: int) -> str:
    value, unit = float(max(count, 0)), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
