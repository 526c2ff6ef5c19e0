"""From the name in a recipe to a folder on this machine."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from grpo.errors import ModelError
from grpo.hub.store import local_folder, stored_model
from grpo.models.public import public_shape
from grpo.models.shipped import shipped_folder, shipped_names


def locate_model(
    name: str, revision: str | None = None, *, key: str = "policy.model_name", weights: bool = True
) -> Path:
    """The folder that holds config.json, tokenizer and weights of `name`.

    Looked for in this order: a folder of that path, a shipped shape, a repository that `grpo fetch` stored.

    Args:
        name: path, shipped name or hub id.
        revision: commit of a hub repository; None takes the stored one.
        key: the configuration key to name in an error.
        weights: false takes a public model's shipped dimensions as well, where random weights are wanted.

    Raises:
        ModelError: nothing of that name is on this machine, or the folder has no config.json.
    """
    found = local_folder(name) or shipped_folder(name) or stored_model(name, revision)
    if found is None and not weights:
        found = public_shape(name)
    if found is None:
        raise ModelError(_missing(name, revision, key))
    if not (found / "config.json").is_file():
        present = ", ".join(sorted(path.name for path in found.iterdir())[:8]) or "nothing"
        raise ModelError(f"{key}={name}: the folder {found} has no config.json (it holds: {present})")
    return found


def _missing(name: str, revision: str | None, key: str) -> str:
    wanted = f"{key}={name}" + (f" at revision {revision}" if revision else "")
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    near = get_close_matches(name, shipped_names(), n=1)
    hint = f" Did you mean the shipped model {near[0]}?" if near else ""
    if looks_like_path:
        return f"{wanted}: there is no such folder.{hint}"
    return (
        f"{wanted}: no folder of that name, no shipped model ({', '.join(shipped_names())}) and nothing stored from "
        f"the hub.{hint} Store it on a machine with network: grpo fetch RECIPE {key}={name}"
    )
