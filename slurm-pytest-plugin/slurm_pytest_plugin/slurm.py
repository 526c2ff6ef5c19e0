"""Slurm's own commands, each with a time limit of its own; their text output is read, never `--json`.

(The exit code in `sacct --json` is the derived one, and the commands disagree on its schema between versions.)
"""

import getpass
import shutil
import subprocess
from collections.abc import Sequence
from functools import cached_property

from slurm_pytest_plugin.place import Executor
from slurm_pytest_plugin.request import ClusterError, Request
from slurm_pytest_plugin.states import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Seen,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
)  # fmt: skip

COMMAND_SECONDS = 30.0
_UNFIT = "down,drain,drained,draining,fail,failing,no_respond,unknown"


class SlurmError(ClusterError):
    """A Slurm cluster that is missing, refuses a job, or does not answer in time."""


class SlurmClient:
    """The cluster that SLURM_CONF, or the machine's own configuration, names."""

    executor: Executor = "slurm"

    def __init__(self) -> None:
        """Raise SlurmError where this machine has no Slurm."""
        if not slurm_is_here():
            raise SlurmError("there is no sbatch on this machine: run this on a login node of a Slurm cluster")

    def submit(self, request: Request) -> str:
        return _run(command_of(request)).strip().partition(";")[0]

    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            _run(["scancel", *job_ids])

    def states(self, job_ids: Sequence[str]) -> dict[str, Seen]:
        """From the queue; of jobs at their end, from accounting where that is on and knows it, else the controller."""
        if not job_ids:
            return {}
        queue = self._queue(job_ids)
        open_ones = {job_id: seen for job_id, seen in queue.items() if not seen.final}
        ended = [job_id for job_id in job_ids if job_id not in open_ones]
        found = {**queue, **self._ended(ended)} if ended else queue
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def find(self, tag: str) -> str | None:
        text = _run(["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", "--format=%i|%k"])
        for line in text.splitlines():
            job_id, _, comment = line.partition("|")
            if comment.strip() == tag:
                return job_id.strip()
        return None

    def faulty(self, nodes: str) -> tuple[str, ...]:
        try:
            text = _run(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", f"--states={_UNFIT}", "--format=%N"])
        except SlurmError:
            return ()
        return tuple(dict.fromkeys(text.split()))

    def expand(self, nodes: str) -> tuple[str, ...]:
        return tuple(_run(["scontrol", "show", "hostnames", nodes]).split()) if nodes else ()

    def answers(self) -> bool:
        return not self.silence()

    def silence(self) -> str:
        """Why nothing answers; "" where something does."""
        try:
            said = _run(["scontrol", "ping"])
        except SlurmError as error:
            return str(error)
        return "" if "UP" in said else said.strip()

    def _queue(self, job_ids: Sequence[str]) -> dict[str, Seen]:
        command = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(job_ids)}", f"--format={SQUEUE_FORMAT}"]
        try:
            return parse_squeue(_run(command))
        except SlurmError as error:
            # Of a single job that the controller has forgotten; of several it leaves out those.
            if "Invalid job id" in str(error):
                return {}
            raise

    def _ended(self, job_ids: Sequence[str]) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        if self._has_accounting:
            command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"]
            try:
                accounted = parse_sacct(_run([*command, f"--jobs={','.join(job_ids)}", f"--format={SACCT_FORMAT}"]))
            except SlurmError:
                accounted = {}
            # It lags by seconds, and may say RUNNING meanwhile.
            found = {job_id: seen for job_id, seen in accounted.items() if seen.final}
        for job_id in job_ids:
            if job_id not in found:
                try:
                    found |= parse_scontrol(_run(["scontrol", "--oneliner", "show", "job", job_id]))
                except SlurmError:
                    continue
        return found

    @cached_property
    def _has_accounting(self) -> bool:
        text = _run(["scontrol", "show", "config"])
        line = next((line for line in text.splitlines() if line.startswith("AccountingStorageType")), "")
        kind = line.partition("=")[2].strip()
        return shutil.which("sacct") is not None and kind not in {"", "(null)", "none", "accounting_storage/none"}


def slurm_is_here() -> bool:
    """Whether this machine can submit to a Slurm."""
    return shutil.which("sbatch") is not None


def command_of(request: Request) -> list[str]:
    """The command that submits."""
    command = ["sbatch", "--parsable", f"--comment={request.tag}"]
    case = request.case
    for name, own, given in (
        ("account", case.account, request.account),
        ("partition", case.partition, request.partition),
    ):
        value = given if own is None else own
        if value:
            command.append(f"--{name}={value}")
    if request.exclude:
        command.append(f"--exclude={','.join(request.exclude)}")
    return [*command, str(request.script)]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer in {COMMAND_SECONDS:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise SlurmError(f"{command[0]}: {said}")
    return done.stdout
