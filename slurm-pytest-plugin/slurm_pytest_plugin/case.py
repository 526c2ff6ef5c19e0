"""What a project says of a case: what to run, on how much of the cluster, for how long."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.place import Place

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TIME = re.compile(r"(\d{1,3}):([0-5]\d):([0-5]\d)")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z-]*(=[^\s#]+)?")


class CaseError(ValueError):
    """A case that cannot be a job."""


@dataclass(frozen=True)
class More:
    """A run that a case wants besides those that it had: a job of its own, in a folder of its own."""

    why: str  # a few words, for people
    exclude: tuple[str, ...] = ()  # nodes at fault
    elsewhere: bool = True  # on other nodes than the runs before, where there are others
    infra: bool = False  # the machine spoilt the last run: counted among the retries, not among the runs


@dataclass(frozen=True)
class Case:
    """One case. Everything but `id` and `script` has a default.

    Attributes:
        id: the name that `--case` takes: letters, digits and `_.-`.
        script: bash, or a function of the Place that returns bash. The `#SBATCH` lines are put before it.
        time_limit: hours:minutes:seconds of one run of the job.
        nodes: nodes of the job.
        gpus_per_node: GPUs of each, for the request and for the GPU-hours.
        expected: hours:minutes:seconds that it usually takes, for `--dry-run`; None: the time limit.
        options: further options of sbatch, one word each.
        gpu_options: options that ask for the GPUs, where the site does not take `--gpus-per-node=N`.
        account, partition: Slurm's; None: what `--account` and `--partition` say; "": the cluster's default.
        requeue_exit_code: the script's exit code that means "saved, start me again", in the same folder.
        max_restarts: how often it may be started again so, or by Slurm after a pre-emption or the loss of a node.
        infra_retries: how often a job that the infrastructure failed is tried again on other nodes, in a new folder.
        more: asked whenever a run has ended, with the outcomes of all runs so far, whether one more is to decide; None:
            one run is the last word.
        max_runs: how many runs `more` may ask for in all, besides retries.
        notice_seconds: the script gets SIGUSR1 so long before the time limit; 0: never.
        clean_environment: the job gets none of the submitting shell's variables.
        writes_result: the script writes `result.json` itself (see README); otherwise that is done for it.
        runs_here: whether `--executor local` can run it; None: it has one node, and this machine has the GPUs.
        progress: a word about how far the job in this folder is, for the table.
    """

    id: str
    script: str | Callable[[Place], str]
    time_limit: str = "01:00:00"
    nodes: int = 1
    gpus_per_node: int = 0
    expected: str | None = None
    options: Sequence[str] = ()
    gpu_options: Sequence[str] | None = None
    account: str | None = None
    partition: str | None = None
    requeue_exit_code: int | None = None
    max_restarts: int = 0
    infra_retries: int = 2
    more: Callable[[Sequence[Outcome]], More | None] | None = None
    max_runs: int = 1
    notice_seconds: int = 120
    clean_environment: bool = False
    writes_result: bool = False
    runs_here: bool | None = None
    progress: Callable[[Path], str] | None = None

    def __post_init__(self) -> None:
        """Raise CaseError for what sbatch would misread."""
        if not _ID.fullmatch(self.id):
            raise CaseError(f"case {self.id!r}: an id has letters, digits and _.- only")
        for name, text in (("time_limit", self.time_limit), ("expected", self.expected)):
            if text is not None and not _TIME.fullmatch(text):
                raise CaseError(f"case {self.id}: {name} = {text!r} is not hours:minutes:seconds")
        for name, least in (("nodes", 1), ("gpus_per_node", 0), ("max_restarts", 0), ("infra_retries", 0),
                            ("max_runs", 1)):  # fmt: skip
            if getattr(self, name) < least:
                raise CaseError(f"case {self.id}: {name} = {getattr(self, name)}: at least {least}")
        for option in (*self.options, *(self.gpu_options or ())):
            # A line of its own in the script: what is refused here could start a second option or a comment.
            if not _OPTION.fullmatch(option):
                raise CaseError(f"case {self.id}: {option!r} is not one option of sbatch, as --name or --name=value")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def limit_seconds(self) -> int:
        return seconds_of(self.time_limit)

    @property
    def may_restart(self) -> bool:
        return self.max_restarts > 0


def seconds_of(text: str) -> int:
    """Seconds of hours:minutes:seconds."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise CaseError(f"{text!r} is not hours:minutes:seconds")
    hours, minutes, seconds = map(int, found.groups())
    return 3600 * hours + 60 * minutes + seconds
