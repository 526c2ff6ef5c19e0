"""What a recipe needs from the hub, and whether it is on this machine."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from grpo.config.schema import Config, HubDataset
from grpo.errors import DataError, GrpoError, ModelError
from grpo.hub.store import Contents, local_folder, stored_folder
from grpo.models.public import public_shape
from grpo.models.shipped import shipped_names

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class Item:
    """A repository of the hub that a recipe names."""

    contents: Contents  # "tokenizer": configuration and tokenizer, no weights
    name: str
    revision: str | None  # branch, tag or commit; None: the main branch
    key: str  # where the recipe names it


def plan_fetch(config: Config) -> list[Item]:
    """The repositories that `config` needs, each once; none for local folders and shipped models.

    Raises ModelError or DataError for a path that does not exist.
    """
    policy = config.policy
    items = _models(policy.model_name, policy.model_revision, "policy.model_name", weights=not policy.random_weights)
    if policy.tokenizer.name not in (None, policy.model_name):
        items += _models(str(policy.tokenizer.name), None, "policy.tokenizer.name", weights=False)
    for key, dataset in (("data.train", config.data.train), ("data.validation", config.data.validation)):
        if isinstance(dataset, HubDataset) and local_folder(dataset.dataset_name) is None:
            _check_name(dataset.dataset_name, f"{key}.dataset_name", DataError)
            items.append(Item("dataset", dataset.dataset_name, dataset.revision, f"{key}.dataset_name"))
    return list({(item.contents, item.name, item.revision): item for item in reversed(items)}.values())[::-1]


def missing_items(config: Config) -> list[Item]:
    """The part of `plan_fetch` that is not stored, and that a run needs."""
    return [
        item
        for item in plan_fetch(config)
        if stored_folder(item.contents, item.name, item.revision) is None and not _dimensions_do(item, config)
    ]


def _dimensions_do(item: Item, config: Config) -> bool:
    """Whether a public model's dimensions, which ship, are all that is wanted: no weights, and no tokenizer."""
    policy = config.policy
    of_another = policy.tokenizer.name not in (None, policy.model_name)
    return (
        item.key == "policy.model_name" and policy.random_weights and of_another and public_shape(item.name) is not None
    )


def require_stored(config: Config, recipe: str, overrides: Sequence[str] = ()) -> None:
    """Raise ModelError or DataError, with the command that fetches, unless all of `plan_fetch` is on this machine."""
    missing = missing_items(config)
    if not missing:
        return
    error = DataError if all(item.contents == "dataset" for item in missing) else ModelError
    names = "; ".join(
        f"{item.key}={item.name}" + (f" at revision {item.revision}" if item.revision else "") for item in missing
    )
    near = [match for item in missing for match in get_close_matches(item.name, shipped_names(), n=1)]
    hint = f" Did you mean the shipped model {near[0]}?" if near else ""
    command = shlex.join(["grpo", "fetch", recipe, *overrides])
    raise error(f"not on this machine: {names}.{hint} Runs use no network; on a machine that has one, run: {command}")


def _models(name: str, revision: str | None, key: str, *, weights: bool) -> list[Item]:
    if local_folder(name) is not None or name in shipped_names():
        return []
    _check_name(name, key, ModelError)
    return [Item("model" if weights else "tokenizer", name, revision, key)]


def _check_name(name: str, key: str, error: type[GrpoError]) -> None:
    if not _HUB_NAME.fullmatch(name):
        raise error(f"{key}={name}: there is no such folder, nor is it a name of the hub, such as 'organisation/name'")
