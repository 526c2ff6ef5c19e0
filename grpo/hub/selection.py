"""Which files of a repository are wanted: never one that runs code when it is read."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from grpo.hub.store import Contents

_INDEX = "model.safetensors.index.json"
_WEIGHTS = ".safetensors"
_TOKENIZER_NAMES = ("tokenizer.model", "merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
_SMALL_SUFFIXES = (".json", ".jinja")
_DOCUMENTS = ("license", "notice", "readme", "use_policy")
_DATA_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".arrow", ".yaml", ".yml")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def wanted_files(sizes: Mapping[str, int], contents: Contents) -> dict[str, int]:
    """The part of `sizes` (path -> bytes) to store; empty where what the name promises is not there.

    Of a model: configuration, tokenizer, documents and, with `contents="model"`, safetensors, all from the top folder
    (subfolders hold copies in other formats). Of a dataset: data files. Never pickles (.bin, .pt, .pkl) or Python code.
    """
    if contents == "dataset":
        data = {path: size for path, size in sizes.items() if _is_data(PurePosixPath(path.lower()))}
        documents = {path: size for path, size in sizes.items() if _is_document(path)}
        return {**data, **documents} if data else {}
    top = {path: size for path, size in sizes.items() if "/" not in path}
    small = {path: size for path, size in top.items() if _is_small(path)}
    if "config.json" not in small:
        return {}
    if contents == "tokenizer":
        return {path: size for path, size in small.items() if path != _INDEX}
    weights = {path: size for path, size in top.items() if path.endswith(_WEIGHTS)}
    standard = {path: size for path, size in weights.items() if path.startswith("model")}
    return {**small, **(standard or weights)} if weights else {}


def _is_small(path: str) -> bool:
    return path.endswith(_SMALL_SUFFIXES) or path in _TOKENIZER_NAMES or _is_document(path)


def _is_document(path: str) -> bool:
    return "/" not in path and path.lower().startswith(_DOCUMENTS) and not path.lower().endswith(".py")


def _is_data(path: PurePosixPath) -> bool:
    if path.name.startswith("."):
        return False
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return path.suffix in _DATA_SUFFIXES
