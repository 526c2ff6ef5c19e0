"""Cases of the matrix as jobs, by slurm-pytest-plugin: `nox -s cluster -- CASE`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.errors import GrpoError
from grpo.matrix.load import Matrix, load_matrix
from grpo.matrix.slurm.cases import gpu_hours_of, job_of, partition_of

ROOT = Path(__file__).parents[2]
MATRIX = pytest.StashKey[Matrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--release", action="store_true", help="faster than the reference fails as well")


def pytest_slurm_cases(config: pytest.Config) -> Iterator[object]:
    """The named cases and no others: all of them together would take hundreds of GPU-hours."""
    try:
        matrix = config.stash.setdefault(MATRIX, load_matrix(ROOT / "matrices"))
        if config.getoption("slurm_max_gpu_hours") is None:
            named = [matrix.case(name) for name in config.getoption("slurm_case")]
            config.option.slurm_max_gpu_hours = gpu_hours_of(matrix, named)
        for name in config.getoption("slurm_case"):
            case = matrix.case(name)
            partition = partition_of(matrix, case, config.getoption("slurm_partition"))
            if config.getoption("slurm_runs_folder") is None:
                config.option.slurm_runs_folder = Path(matrix.partition(partition).storage.shared)
            account = config.getoption("slurm_account")
            yield job_of(matrix, case, partition, environ=os.environ, working_directory=ROOT, account=account)
    except GrpoError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def matrix(request) -> Matrix:
    return request.config.stash[MATRIX]


@pytest.fixture
def partition(request, matrix, slurm_case) -> str:
    return partition_of(matrix, matrix.case(slurm_case.id), request.config.getoption("slurm_partition"))
