"""Records of a Hugging Face dataset: a local folder, or a name that `grpo fetch` stored. Nothing is fetched here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grpo.data.sources.record import numbered
from grpo.errors import DataError
from grpo.hub.offline import go_offline
from grpo.hub.store import local_folder, stored_dataset

_RUNS_CODE = (".pkl", ".pickle", ".py")  # `datasets` would unpickle the first two
_SAVED_TO_DISK = ("state.json", "dataset_dict.json")


def hub_records(
    name: str, *, subset: str | None, split: str, revision: str | None, key: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, record) pairs of one split.

    Raises DataError when the dataset is not on this machine, cannot be read, or has no such subset or split.
    """
    folder = locate_dataset(name, revision, key=key)
    try:
        go_offline()
        import datasets
    except ImportError as error:
        raise DataError(f"{key}: Hugging Face datasets need `datasets`: pip install 'grpo-matrix[data]'") from error
    try:
        if any((folder / marker).is_file() for marker in _SAVED_TO_DISK):
            splits = datasets.load_from_disk(str(folder))
            splits = splits if isinstance(splits, Mapping) else {split: splits}
        else:
            with TemporaryDirectory(prefix="grpo-") as scratch:  # streaming leaves nothing but a lock file in it
                splits = datasets.load_dataset(str(folder), subset, streaming=True, cache_dir=scratch)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{key}: the dataset in {folder} cannot be read: {error}") from error
    if split not in splits:
        raise DataError(f"{key}.split: {name} has no split {split!r}; it has: {', '.join(map(str, splits))}")
    source = "/".join(part for part in (name, subset, split) if part)
    return numbered(_rows(splits[split], source, datasets), source)


def locate_dataset(name: str, revision: str | None, *, key: str) -> Path:
    """The folder of a dataset: a local one, or what `grpo fetch` stored.

    Raises DataError when there is none, or when it holds files that run code as they are read.
    """
    folder = local_folder(name) or stored_dataset(name, revision)
    if folder is None:
        at = f" at revision {revision}" if revision else ""
        raise DataError(
            f"{key}.dataset_name={name}{at}: there is no such folder, and nothing of that name is stored; on a machine "
            f"with network: grpo fetch RECIPE {key}.dataset_name={name}"
        )
    refused = [path for path in folder.rglob("*") if path.suffix in _RUNS_CODE]
    if refused:
        raise DataError(
            f"{key}.dataset_name={name}: {refused[0]} can run code when it is read; remove it, or convert it to Parquet"
        )
    return folder


def _rows(split: Any, source: str, datasets: Any) -> Iterator[Mapping[str, Any]]:
    try:
        for table in split.with_format("arrow").iter(batch_size=1024):
            yield from table.to_pylist()
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{source}: the dataset cannot be read: {error}") from error
