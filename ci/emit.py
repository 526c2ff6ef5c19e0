"""Writes the pipelines of GitHub, GitLab and Buildkite from the matrix. A test fails when they are stale."""

import sys
from pathlib import Path

from ci.pipelines import buildkite, github, gitlab
from ci.stacks import write_stacks
from grpo.matrix.load import Matrix, load_matrix

ROOT = Path(__file__).resolve().parents[1]


def emitted(matrix: Matrix) -> dict[str, str]:
    """Text by path, relative to the root."""
    return {**github.files(matrix), **gitlab.files(matrix), **buildkite.files(matrix)}


def stale(root: Path, matrix: Matrix) -> list[str]:
    """Files that are missing, differ from what would be written, or would not be written any more."""
    wanted = emitted(matrix)
    found = [path for path, text in wanted.items() if not (root / path).is_file() or (root / path).read_text() != text]
    there = [
        path.relative_to(root).as_posix()
        for folder in (".github/workflows", ".buildkite")
        for path in sorted((root / folder).glob("*.yml"))
    ]
    return found + [path for path in there if path not in wanted]


def write(root: Path, matrix: Matrix) -> None:
    for name, text in emitted(matrix).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    data = load_matrix(ROOT / "matrices")
    write_stacks(ROOT, data)
    write(ROOT, load_matrix(ROOT / "matrices"))
    sys.exit(0)
