"""A real Slurm on this machine, started once, and all jobs of the selected tests, submitted at once."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from slurm_pytest_plugin import Case, Limits, Outcome, Run, SlurmClient
from slurm_pytest_plugin.job import Job

from grpo.matrix.judge import Verdict
from grpo.matrix.load import load_matrix
from grpo.matrix.slurm.cases import job_of, verdict_of

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "ci" / "slurm"
MATRIX = load_matrix(ROOT / "matrices")
PARTITION = "cpu-local"
# Of a machine that others use as well: what is waited for takes minutes there, and nothing is measured in seconds.
LIMITS = Limits(queue=3000, grace=300, poll=0.5)
GENEROUS = "00:25:00"  # of every job but one
UNTIL_SECONDS = 600
NODES, SPARE = 4, 3  # the spare ones are for jobs that lose their node, or wait for a clock


@dataclass(frozen=True)
class Cluster:
    """The one-machine cluster."""

    state: Path
    client: SlurmClient
    accounting: bool = False

    def start(self) -> None:
        """Start what does not run: a slurmd or slurmctld that a test ended, too."""
        plain = ["-p", "17100", "-n", str(NODES + SPARE), "-s", str(SPARE)]
        more = ["-a", "-p", "17200", "-x", "acct", "-n", "1"] if self.accounting else plain
        # To a file: the daemons keep what they inherit open, and a pipe would never end.
        with (self.state / "up.log").open("w") as log:
            command = [SCRIPTS / "up.sh", "-c", "2", "-m", "6000", *more, self.state / "s"]
            done = subprocess.run(command, stdout=log, stderr=log, timeout=400, check=False)
        assert done.returncode == 0, (self.state / "up.log").read_text()

    def stop(self) -> None:
        subprocess.run([SCRIPTS / "down.sh", self.state / "s"], timeout=120, check=True)

    def end_daemon(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """By default as if it had crashed."""
        pid = int((self.state / "s" / "run" / f"{name}.pid").read_text())
        os.kill(pid, number)
        psutil.wait_procs([process for process in psutil.process_iter() if process.pid == pid], timeout=60)

    def lose_node(self, name: str) -> None:
        """Its slurmd and all of its jobs' processes, as if its power had failed."""
        self.end_daemon(f"slurmd-{name}")
        lost = [process for process in psutil.process_iter() if _runs_on(process, name)]
        steps = {parent for process in lost for parent in process.parents() if parent.name().startswith("slurmstepd")}
        # The steps first: they would tell the controller that the job has ended.
        for process in (*steps, *lost):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _runs_on(process: psutil.Process, name: str) -> bool:
    """Whether it is of a job on this node of this cluster."""
    try:
        environ = process.environ()
    except (psutil.Error, OSError):
        return False
    return environ.get("SLURMD_NODENAME") == name and environ.get("SLURM_CONF") == os.environ["SLURM_CONF"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Seven nodes of two CPUs and 6 GB; SLURM_CONF points to them."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.fail("the one-machine Slurm cluster needs root on Debian or Ubuntu")
    state = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(state / "s" / "etc" / "slurm.conf"))
        started = Cluster(state, SlurmClient() if shutil.which("sbatch") else None)
        try:
            started.start()
            yield replace(started, client=SlurmClient())
        finally:
            started.stop()


@dataclass(frozen=True)
class Action:
    """What is done to a job, once, while others may be waited for: when `ready` holds of its folder."""

    ready: Callable[[Path], bool]
    do: Callable[[Cluster, Job], object]


@dataclass
class Jobs:
    """Jobs that were submitted together; `end` waits for one, and meanwhile does to the others what is to be done."""

    cluster: Cluster
    run: Run
    cases: dict[str, object]
    said: list[str]
    actions: dict[str, Action] = field(default_factory=dict)
    done: dict[str, object] = field(default_factory=dict)  # what the actions gave

    def wait(self, name: str) -> Outcome:
        return self.run.wait(name, self.act)

    def end(self, name: str) -> tuple[Outcome, Verdict]:
        outcome = self.wait(name)
        return outcome, verdict_of(MATRIX, self.cases[name], PARTITION, outcome)

    def act(self) -> None:
        for name, action in self.actions.items():
            job = self.run.jobs[name]
            is_running = job.outcome is None and job.job_id is not None and job.seen is not None and job.seen.nodes
            if name not in self.done and is_running and action.ready(job.folder):
                self.done[name] = action.do(self.cluster, job)

    def until(self, name: str, condition: Callable[[Path], bool]) -> Path:
        """The job's folder, when the condition holds of it."""
        ends = time.monotonic() + UNTIL_SECONDS
        while not condition(folder := self.run.jobs[name].folder):
            self.run.tick()
            assert self.run.jobs[name].outcome is None, self.run.jobs[name].outcome
            assert time.monotonic() < ends, self.said
            time.sleep(0.2)
        return folder


def matrix_job(name: str, base: str = "tiny-hf", *, more=(), options=(), partition=None, max_runs=None, **changes):
    """A case of the matrix, changed, and its job."""
    case = MATRIX.case(base)
    changes = {"time_limit": GENEROUS, **changes}
    case = case.model_copy(update={"id": name, "overrides": [*case.overrides, *more], **changes})
    site = MATRIX.partition(PARTITION).model_copy(update=partition or {})
    matrix = replace(MATRIX, partitions={**MATRIX.partitions, PARTITION: site})
    job = job_of(matrix, case, PARTITION, environ=os.environ, working_directory=ROOT)
    limits = {} if max_runs is None else {"max_runs": max_runs}
    return case, replace(job, options=(*job.options, *options), **limits)


def submit(cluster: Cluster, folder: Path, *pairs: tuple[object, Case], limits: Limits = LIMITS) -> Jobs:
    """Submit them all."""
    said: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(cluster.client, folder, [job for _, job in pairs], limits=limits, say=said.append)
    run.start()
    return Jobs(cluster, run, {job.id: case for case, job in pairs}, said)


def pytest_configure(config):
    config.addinivalue_line("markers", "jobs(name, ...): jobs of tests/slurm/jobs.py that the test looks at")


@pytest.fixture(scope="session")
def jobs(request, cluster, tmp_path_factory):
    """The jobs of all selected tests. What waits for a clock, or is on nodes of its own, is submitted first."""
    from tests.slurm.jobs import ACTIONS, JOBS

    wanted = {name for item in request.session.items for mark in item.iter_markers("jobs") for name in mark.args}
    folder = tmp_path_factory.mktemp("jobs")
    submitted = submit(cluster, folder / "r", *(make(folder) for name, make in JOBS.items() if name in wanted))
    submitted.actions |= {name: action for name, action in ACTIONS.items() if name in wanted}
    yield submitted
    submitted.run.cancel()
