"""The hook that a project implements."""

from collections.abc import Iterable

import pytest

from slurm_pytest_plugin.case import Case


@pytest.hookspec
def pytest_slurm_cases(config: pytest.Config) -> Iterable[Case]:
    """Give the cases that the tests in reach of this conftest.py run once for, where they ask for `slurm_case`."""
    raise NotImplementedError(config)
