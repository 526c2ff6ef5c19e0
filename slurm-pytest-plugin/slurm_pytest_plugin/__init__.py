"""Test cases as Slurm jobs: pytest submits them all at once, and each test waits for its own.

A project gives its cases through the hook `pytest_slurm_cases`; a test that asks for the fixture `slurm_case` runs once
for each of them.
"""

from slurm_pytest_plugin.case import Case, CaseError, More
from slurm_pytest_plugin.failure import FAILURES, FailureClass, classify
from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.place import Place
from slurm_pytest_plugin.result import Result, ResultError, read_result
from slurm_pytest_plugin.run import Limits, Run
from slurm_pytest_plugin.slurm import SlurmClient, SlurmError
from slurm_pytest_plugin.states import Seen

__version__ = "0.1.0"
__all__ = [
    "FAILURES",
    "Case",
    "CaseError",
    "FailureClass",
    "Limits",
    "More",
    "Outcome",
    "Place",
    "Result",
    "ResultError",
    "Run",
    "Seen",
    "SlurmClient",
    "SlurmError",
    "classify",
    "read_result",
]
