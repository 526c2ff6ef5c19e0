"""Reading `matrices/`: every file, strictly, into one object that the engine works from."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from grpo.config.nearest import did_you_mean
from grpo.config.schema.base import Section
from grpo.config.tree import Branch
from grpo.config.yaml_format import read
from grpo.errors import ConfigError, MatrixError
from grpo.matrix.expand import expand
from grpo.matrix.judge.bands import SPREAD_RUNS
from grpo.matrix.schema import Budgets, Case, CaseEntry, Family, Partition, Reference
from grpo.matrix.strict import build, listed, origin_of

S = TypeVar("S", bound=Section)
FOLDER = "matrices"
BUDGETS = "budgets.yaml"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Timing rules say nothing about whether a number is right, so the metrics of learning are bounded absolutely instead.
REFERENCE_PREFIXES = ("timing/", "performance/", "memory/")
INFORMING = "rollout/generated_tokens_per_sample"  # may stand in a reference, to be shown


@dataclass(frozen=True)
class Matrix:
    """The whole matrix, expanded and checked file by file."""

    folder: Path
    cases: Mapping[str, Case]
    partitions: Mapping[str, Partition]
    references: Mapping[tuple[str, str], Reference]  # by (partition, case)
    budgets: Budgets
    origins: Mapping[str, str]  # of the cases: file:line

    def case(self, case_id: str) -> Case:
        """Exactly this case. Raises MatrixError naming the nearest ids."""
        return _known(self.cases, case_id, "case")

    def partition(self, name: str) -> Partition:
        """Exactly this partition. Raises MatrixError."""
        return _known(self.partitions, name, "partition")

    def reference(self, partition: str, case_id: str) -> Reference | None:
        return self.references.get((partition, case_id))


V = TypeVar("V")


def _known(table: Mapping[str, V], name: str, what: str) -> V:
    if name not in table:
        raise MatrixError(f"there is no {what} {name!r}{did_you_mean(name, table)}; there are: {', '.join(table)}")
    return table[name]


def find_matrices(folder: Path | None = None) -> Path:
    """The folder of the matrix: the given one, `matrices` here, or that of the checkout. Raises MatrixError."""
    checkout = Path(__file__).resolve().parents[2] / FOLDER
    candidates = [folder] if folder is not None else [Path(FOLDER), checkout]
    for candidate in candidates:
        if (candidate / BUDGETS).is_file():
            return candidate
    places = " or ".join(str(one) for one in candidates)
    raise MatrixError(f"no matrix at {places} (no {BUDGETS} there): name its folder with --matrices")


def load_matrix(folder: Path) -> Matrix:
    """Read everything. Raises MatrixError naming file, line, key and the nearest valid key."""
    cases: dict[str, Case] = {}
    origins: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        if path.name != BUDGETS:
            for case, origin in _read_family(path):
                if case.id in cases:
                    raise MatrixError(f"{origin}: the case {case.id} is there already, at {origins[case.id]}")
                cases[case.id], origins[case.id] = case, origin
    partitions = {path.stem: _read(path, Partition) for path in sorted((folder / "partitions").glob("*.yaml"))}
    references = {
        (path.parent.name, path.stem): read_reference(path) for path in sorted((folder / "references").glob("*/*.yaml"))
    }
    matrix = Matrix(folder, cases, partitions, references, _read(folder / BUDGETS, Budgets), origins)
    _check_names(matrix)
    return matrix


def _check_names(matrix: Matrix) -> None:
    problems = []
    for case in matrix.cases.values():
        for name in case.partitions:
            if name not in matrix.partitions:
                near = did_you_mean(name, matrix.partitions)
                problems.append(f"{matrix.origins[case.id]}: {case.id}: no partition {name!r}{near}")
    for partition, case_id in matrix.references:
        where = f"{matrix.folder}/references/{partition}/{case_id}.yaml"
        if case_id not in matrix.cases:
            problems.append(f"{where}: no case {case_id!r}{did_you_mean(case_id, matrix.cases)}")
        elif partition not in matrix.cases[case_id].partitions:
            problems.append(f"{where}: the case {case_id} does not name the partition {partition!r}")
    if problems:
        raise MatrixError(listed(problems))


def read_yaml(path: Path) -> Branch:
    """A file as a tree that remembers lines. Raises MatrixError."""
    try:
        tree = read(path.read_text(encoding="utf-8"), origin=_display(path), lines=True)
    except ConfigError as error:
        raise MatrixError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(f"{_display(path)}: cannot be read: {error}") from None
    if not isinstance(tree, Branch):
        raise MatrixError(f"{_display(path)}: expected a mapping with schema_version")
    return tree


def _read(path: Path, model: type[S]) -> S:
    return build(model, read_yaml(path))


def _read_family(path: Path) -> Iterable[tuple[Case, str]]:
    tree = read_yaml(path)
    family = build(Family, tree)
    defaults = tree.children.get("defaults", Branch(tree.origin))
    entries = tree.children["cases"]
    if not isinstance(defaults, Branch) or not isinstance(entries, Branch):
        raise MatrixError(f"{_display(path)}: defaults and cases are mappings")
    for name, entry in entries.children.items():
        if not isinstance(entry, Branch):
            raise MatrixError(f"{entry.origin}: the case {name}: expected a mapping")
        for case_id, keys in expand(name, entry, defaults):
            if not _ID.fullmatch(case_id):
                raise MatrixError(f"{entry.origin}: {case_id!r} is no id: write words of a-z and 0-9, joined by -")
            checked = build(CaseEntry, keys)
            _check_metrics(checked, keys, case_id)
            yield Case(id=case_id, family=path.stem, layer=family.layer, **dict(checked)), entry.origin


def _check_metrics(case: CaseEntry, keys: Branch, case_id: str) -> None:
    for metric in case.checks.against_reference:
        if not metric.startswith(REFERENCE_PREFIXES):
            raise MatrixError(
                f"{origin_of(keys, 'checks.against_reference')}: {case_id}: {metric} is not for a reference "
                f"(but {', '.join(REFERENCE_PREFIXES)}); bound it with checks.bounds"
            )
    for metric, bound in case.checks.bounds.items():
        if bound.lower is None and bound.upper is None:
            where = origin_of(keys, f"checks.bounds.{metric}")
            raise MatrixError(f"{where}: {case_id}: checks.bounds.{metric} has neither lower nor upper")


def read_reference(path: Path) -> Reference:
    """A reference file of this schema version or the one before. Raises MatrixError."""
    tree = read_yaml(path)
    reference = build(Reference, tree)
    where = origin_of(tree, "values")
    if (reference.source.kind == "none") != (not reference.values):
        expected = "no values, since there is none" if reference.source.kind == "none" else "values by metric"
        raise MatrixError(f"{where}: values: expected {expected} (source.kind is {reference.source.kind})")
    for metric, figure in reference.values.items():
        at = origin_of(tree, f"values.{metric}")
        low = figure.value if figure.lower is None else figure.lower
        high = figure.value if figure.upper is None else figure.upper
        if figure.value <= 0:
            raise MatrixError(f"{at}: values.{metric}.value = {figure.value}: expected a number above 0")
        if not low <= figure.value <= high:
            raise MatrixError(f"{at}: values.{metric}: lower {low}, value {figure.value}, upper {high} do not ascend")
        if not metric.startswith(REFERENCE_PREFIXES) and metric != INFORMING:
            raise MatrixError(f"{at}: values.{metric}: a reference is for {', '.join(REFERENCE_PREFIXES)}")
    source = reference.source
    if source.kind == "measured":
        if len(source.nodes) not in (1, len(source.runs)):
            raise MatrixError(f"{where}: source.nodes: {len(source.nodes)} node sets of {len(source.runs)} runs")
        if len(source.runs) >= SPREAD_RUNS and any(figure.spread is None for figure in reference.values.values()):
            raise MatrixError(f"{where}: values: a measured figure needs its spread between runs")
    return reference


def _display(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
