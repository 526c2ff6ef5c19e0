"""A real Slurm on this machine, started once, and cases of the matrix as its jobs."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from slurm_pytest_plugin import Case, Limits, Outcome, Run, SlurmClient

from grpo.matrix.judge import Verdict
from grpo.matrix.load import load_matrix
from grpo.matrix.slurm.cases import job_of, verdict_of

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "ci" / "slurm"
MATRIX = load_matrix(ROOT / "matrices")
PARTITION = "cpu-local"
LIMITS = Limits(queue=600, grace=120, poll=0.5)
NODES = 4


@dataclass(frozen=True)
class Cluster:
    """The one-machine cluster."""

    state: Path
    client: SlurmClient
    accounting: bool = False

    def start(self) -> None:
        """Start what does not run: a slurmd or slurmctld that a test ended, too."""
        more = ["-a", "-p", "17200", "-x", "acct", "-n", "1"] if self.accounting else ["-p", "17100", "-n", str(NODES)]
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
        psutil.wait_procs([process for process in psutil.process_iter() if process.pid == pid], timeout=20)

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
    """Four nodes of two CPUs and 6 GB; SLURM_CONF points to them."""
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
class Jobs:
    """Jobs that were submitted together; `end` waits for one."""

    run: Run
    cases: dict[str, object]
    said: list[str]

    def end(self, name: str, on_tick: Callable[[], None] = lambda: None) -> tuple[Outcome, Verdict]:
        outcome = self.run.wait(name, on_tick)
        return outcome, verdict_of(MATRIX, self.cases[name], PARTITION, outcome)

    def until(self, name: str, condition: Callable[[Path], bool], seconds: float = 300) -> Path:
        """The job's folder, when the condition holds of it."""
        ends = time.monotonic() + seconds
        folder = self.run.jobs[name].folder
        while not condition(folder):
            self.run.tick()
            assert self.run.jobs[name].outcome is None, self.run.jobs[name].outcome
            assert time.monotonic() < ends, self.said
            time.sleep(0.2)
        return folder


def matrix_job(name: str, base: str = "tiny-hf", *, more=(), options=(), **changes):
    """A case of the matrix, changed, and its job."""
    case = MATRIX.case(base)
    case = case.model_copy(update={"id": name, "overrides": [*case.overrides, *more], **changes})
    job = job_of(MATRIX, case, PARTITION, environ=os.environ, working_directory=ROOT)
    return case, replace(job, options=(*job.options, *options))


def submit(cluster: Cluster, folder: Path, *pairs: tuple[object, Case], limits: Limits = LIMITS) -> Jobs:
    """Submit them all."""
    said: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(cluster.client, folder, [job for _, job in pairs], limits=limits, say=said.append)
    run.start()
    return Jobs(run, {job.id: case for case, job in pairs}, said)
