"""Which test belongs to which case, and what pytest is told to run one."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import MatrixError
from grpo.matrix.load import Matrix
from grpo.matrix.schema import Suite

FOLDER = "/**"
# Runs every case of the functional layer that trains, and judges it; its tests are named after the cases.
RUNS = "tests/functional/matrix/test_cases.py"
RUNS_TEST = f"{RUNS}::test_a_case_trains_and_passes"
LAYER_FOLDERS = {"unit": "tests/unit", "functional": "tests/functional"}


@dataclass(frozen=True)
class Owner:
    """A pattern of a suite."""

    suite: str
    pattern: str

    @property
    def target(self) -> str:
        """As pytest takes it on its command line."""
        return self.pattern.removesuffix(FOLDER)

    @property
    def prefix(self) -> str:
        """What the ids of its tests begin with and no other's: pytest deselects by prefix, `a` meaning `ab` too."""
        if self.pattern.endswith(FOLDER):
            return f"{self.target}/"
        return self.target if "::" in self.target else f"{self.target}::"

    def matches(self, node: str) -> bool:
        """Whether a test, or a file, is meant."""
        if self.pattern.endswith(FOLDER):
            return node.startswith(self.target + "/")
        return node == self.pattern or node.startswith((f"{self.pattern}::", f"{self.pattern}["))

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """The more specific pattern has the higher one: a test before its file before its folder."""
        return "::" in self.pattern, not self.pattern.endswith(FOLDER), len(self.pattern)


def owners_of(matrix: Matrix) -> list[Owner]:
    return [Owner(suite.id, pattern) for suite in matrix.suites.values() for pattern in suite.tests]


def case_of(node: str, owners: Iterable[Owner]) -> str:
    """The one case that a test (`FILE::TEST[PARAMETERS]`) or a test file belongs to.

    The most specific pattern decides. Raises MatrixError where none matches or two are equally specific.
    """
    if node.startswith(f"{RUNS_TEST}["):
        return node[len(RUNS_TEST) + 1 : -1]
    found = sorted((one for one in owners if one.matches(node)), key=lambda one: one.rank)
    if not found:
        raise MatrixError(f"{node} belongs to no case: name its file or folder under `tests:` of one in matrices/")
    if len({one.suite for one in found if one.rank == found[-1].rank}) > 1:
        raise MatrixError(f"{node} belongs to {' and '.join(sorted(one.suite for one in found))}: to one alone")
    return found[-1].suite


def pytest_arguments(matrix: Matrix, layer: str, ids: Sequence[str]) -> list[str]:
    """What runs exactly these cases of a layer. Raises MatrixError for an unknown id or one of another layer."""
    chosen = [matrix.any_case(one) for one in dict.fromkeys(ids)]
    for case in chosen:
        if case.layer != layer:
            raise MatrixError(f"{case.id} is a case of the {case.layer} layer, not of {layer}")
    selected = {case.id for case in chosen}
    owners = owners_of(matrix)
    mine = [one for one in owners if one.suite in selected]
    arguments = list(dict.fromkeys(one.target for one in mine))
    arguments += [f"{RUNS_TEST}[{case.id}]" for case in chosen if not isinstance(case, Suite)]
    for other in owners:
        inside = any(one.matches(other.target) and one.rank < other.rank for one in mine)
        if other.suite not in selected and inside:
            arguments += ["--deselect", other.prefix]
    if any(case.cadence != "pr" for case in chosen):
        arguments += ["-m", ""]  # tests of other cadences are marked, and deselected otherwise
    return arguments


def files_in(root: Path, layer: str) -> Iterator[str]:
    """Every test file of a layer, relative to the root."""
    for path in sorted((root / LAYER_FOLDERS[layer]).rglob("test_*.py")):
        yield path.relative_to(root).as_posix()


def files_of(suite: Suite, matrix: Matrix, root: Path) -> list[str]:
    """The test files that hold the suite's tests."""
    owners = owners_of(matrix)
    found = []
    for layer in LAYER_FOLDERS:
        for file in files_in(root, layer):
            in_part = any(pattern.startswith(f"{file}::") for pattern in suite.tests)
            if in_part or (
                any(Owner(suite.id, p).matches(file) for p in suite.tests) and case_of(file, owners) == suite.id
            ):
                found.append(file)
    return found


def idle_patterns(matrix: Matrix, root: Path) -> list[str]:
    """Patterns that no file, folder or test function answers."""
    idle = []
    for owner in owners_of(matrix):
        file, _, test = owner.target.partition("::")
        path = root / file
        if test:
            name = test.partition("[")[0]
            known = path.is_file() and name in _functions(path)
        else:
            known = any(path.rglob("test_*.py")) if owner.pattern.endswith(FOLDER) else path.is_file()
        if not known:
            idle.append(f"{owner.suite}: {owner.pattern}")
    return idle


def _functions(path: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }
