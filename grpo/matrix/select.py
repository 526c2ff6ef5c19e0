"""Which cases a change needs: by their `paths`, by what their tests import, and all of them where that is unsure."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.matrix.import_graph import ImportGraph
from grpo.matrix.load import Matrix
from grpo.matrix.schema import Case, Suite
from grpo.matrix.schema.types import seconds_of
from grpo.matrix.suites import files_of

# A change of these may change anything: versions, settings, and what tests are given by others.
FOR_ALL = ("pyproject.toml", "noxfile.py", ".ci/**", "ci/locks/**", "**/conftest.py", "tests/support/**")
# Files that no program reads but by name: they select the cases whose `paths` name them, and no others.
QUIET = (
    "*.md", "LICENSE", ".gitignore", "docs/**", "matrices/**", ".github/**", ".gitlab-ci.yml", ".buildkite/**",
)  # fmt: skip
GIT_SECONDS = 60


@dataclass(frozen=True)
class Choice:
    """A case, and why it is chosen."""

    case: str
    reason: str


def select(matrix: Matrix, root: Path, changed: Sequence[str] | None) -> list[Choice]:
    """The cases that a change of these files (relative to the root) needs, in the matrix's order.

    None, or no file at all, needs everything: there is nothing to go by.
    """
    why = "it is not known what changed" if changed is None else None if changed else "nothing changed"
    graph = ImportGraph(root)
    for path in changed or ():
        why = why or _unsure(path, graph)
    if why is not None:
        return [Choice(case, f"everything: {why}") for case in matrix.all]
    assert changed is not None
    choices = []
    for case in matrix.all.values():
        reason = _reason(case, changed, matrix, root, graph)
        if reason is not None:
            choices.append(Choice(case.id, reason))
    return choices


def _unsure(path: str, graph: ImportGraph) -> str | None:
    if matches(path, FOR_ALL):
        return f"{path} may change anything"
    if path in graph.files or matches(path, QUIET):
        return None
    if path.endswith(".py"):
        return f"{path} is gone, or belongs to no package"
    return f"{path} is not known to be of some cases alone"


def _reason(case: Case | Suite, changed: Iterable[str], matrix: Matrix, root: Path, graph: ImportGraph) -> str | None:
    changed = list(changed)
    for path in changed:
        if matches(path, case.paths):
            return f"paths: {path}"
        if path == f"{matrix.folder.name}/{case.family}.yaml":
            return f"its family: {path}"
    if isinstance(case, Suite):
        for test in files_of(case, matrix, root):
            hit = graph.closure(test).intersection(changed)
            if hit:
                return f"{test} needs {min(hit)}" if test not in hit else f"its test {test}"
    return None


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path is meant. `*` stays in a folder, `**` does not; the last pattern that fits decides (`!`: no)."""
    meant = False
    for pattern in patterns:
        excludes = pattern.startswith("!")
        if _regex(pattern.removeprefix("!")).fullmatch(path):
            meant = not excludes
    return meant


def _regex(pattern: str) -> re.Pattern[str]:
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts))


def changed_files(root: Path, base: str) -> list[str] | None:
    """What differs from where this branch left `base`, and what is not committed; None where git cannot say."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    if commit is None:
        return None
    asked = (
        ["diff", "--name-only", "-z", "--no-renames", f"{commit.strip()}...HEAD", "--"],
        ["diff", "--name-only", "-z", "--no-renames", "HEAD", "--"],
        ["ls-files", "--others", "--exclude-standard", "-z"],
    )
    found: set[str] = set()
    for arguments in asked:
        printed = _git(root, *arguments)
        if printed is None:
            return None
        found |= {path for path in printed.split("\0") if path}
    return sorted(found)


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails, so that its caller takes everything for changed."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            ["git", "-C", str(root), *arguments],  # noqa: S607
            capture_output=True, text=True, timeout=GIT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def shards(cases: Sequence[Case | Suite], count: int) -> list[list[str]]:
    """The cases divided over `count` machines: the longest first, each to the one with the least so far."""
    loads = [0] * count
    divided: list[list[str]] = [[] for _ in range(count)]
    for case in sorted(cases, key=lambda one: (-seconds_of(one.time_limit), one.id)):
        least = loads.index(min(loads))
        loads[least] += seconds_of(case.time_limit)
        divided[least].append(case.id)
    return divided
