"""What every pipeline is made from: the matrix's versions, time limits and cases, and how YAML is written."""

import math
from dataclasses import dataclass
from typing import Any

import yaml

from grpo.matrix.load import Matrix
from grpo.matrix.schema import Case
from grpo.matrix.schema.types import seconds_of

HEADER = "# Written by `nox -s emit` from matrices/ and ci/pipelines/: change it there.\n"
CHECKS = "nox -s gate -- --only checks plugin"
INSTALL = "python -m pip install --quiet nox"
# CPU builds of torch, where the package index has CUDA ones of several gigabytes.
CPU_INDEX = {"PIP_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cpu"}
UNPACKING_MINUTES = 10  # installing an environment without a cache
SHARD_MINUTES = 5.0
LONGEST_MINUTES = 350  # hosted runners end a job after six hours
QUEUE_MINUTES = 120  # that a job of a cluster may wait
REPORTS = "reports"
SLURM = "nox -s slurm"
SLURM_NIGHTLY = 'nox -s slurm -- -m "" tests/slurm'
NIGHTLY_SLURM_MINUTES = 60.0


def as_root(command: str, dollar: str = "$") -> str:
    """Slurm's daemons need root. `dollar`: how the pipeline's syntax writes one for the shell."""
    path = f'env "PATH={dollar}PATH"'
    return f'if [ "{dollar}(id -u)" = 0 ]; then {command}; else sudo -E {path} {command}; fi'


@dataclass(frozen=True)
class OnHardware:
    """A case on a partition that has GPUs or several nodes."""

    case: str
    layer: str
    partition: str
    minutes: int
    release: bool  # "faster" fails as well: what is released has fresh references

    @property
    def command(self) -> str:
        return f"nox -s {self.layer} -- {self.case} --partition {self.partition}{' --release' * self.release}"


def pythons(matrix: Matrix) -> list[str]:
    """Versions that pull requests run the unit layer on, the default first."""
    return list(matrix.stacks["core"].python)


def shard_count(matrix: Matrix) -> int:
    """Machines that share the functional layer, so that each has some minutes of it."""
    return max(1, math.ceil(matrix.budgets.gate_minutes.functional / SHARD_MINUTES))


def minutes(budget: float) -> int:
    """A job's time limit: twice its share of the budget, and the time to install."""
    return min(math.ceil(2 * budget) + UNPACKING_MINUTES, LONGEST_MINUTES)


def on_hardware(matrix: Matrix, cadence: str) -> list[OnHardware]:
    """What a cadence runs on GPUs and clusters. Whoever runs no less often runs with it."""
    return [
        OnHardware(
            case.id,
            case.layer,
            name,
            math.ceil(seconds_of(case.time_limit) / 60) + QUEUE_MINUTES,
            release=cadence == "release",
        )
        for case in matrix.cases.values()
        if case.cadence == cadence and case.gpus
        for name in case.partitions
    ]


def hardware_cases(matrix: Matrix) -> list[Case]:
    return [case for case in matrix.cases.values() if case.gpus]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def dump(value: Any) -> str:
    """YAML with the header; keys in their order, scripts as blocks."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return HEADER + text
