"""Every test is one of a case of the matrix: named after it in reports, and not gating while that is quarantined."""

from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix.load import load_matrix
from grpo.matrix.suites import LAYER_FOLDERS, case_of, owners_of

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
LAYERS = tuple(f"{folder}/" for folder in LAYER_FOLDERS.values())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        matrix = load_matrix(ROOT / "matrices")
    except MatrixError as error:
        raise pytest.UsageError(str(error)) from None
    owners = owners_of(matrix)
    problems = set()
    for item in items:
        if not item.nodeid.startswith(LAYERS):
            continue
        try:
            case = case_of(item.nodeid, owners)
        except MatrixError as error:
            problems.add(str(error))
            continue
        item.user_properties.append(("case", case))
        held = matrix.quarantine.cases.get(case)
        if held is not None:
            item.add_marker(pytest.mark.xfail(reason=held.sentence, strict=False))
    if problems:
        raise pytest.UsageError("\n".join(sorted(problems)))
