"""A real Slurm on this machine, started once, and cases of the matrix as its jobs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from grpo.matrix.load import load_matrix
from grpo.matrix.slurm.client import SlurmClient
from grpo.matrix.slurm.runner import Waiting, prepare_job, run_job, run_seconds

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "ci" / "slurm"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Two nodes of two CPUs and 2 GB; SLURM_CONF points to them."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.fail("the one-machine Slurm cluster needs root on Debian or Ubuntu")
    state = tmp_path_factory.mktemp("slurm")
    try:
        # To a file: the daemons keep what they inherit open, and a pipe would never end.
        with (state / "up.log").open("w") as log:
            command = [SCRIPTS / "up.sh", "-n", "2", "-c", "2", "-m", "2048", "-p", "17100", state / "s"]
            done = subprocess.run(command, stdout=log, stderr=log, timeout=300, check=False)
        assert done.returncode == 0, (state / "up.log").read_text()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(state / "s" / "etc" / "slurm.conf"))
            yield SlurmClient()
    finally:
        subprocess.run([SCRIPTS / "down.sh", state / "s"], timeout=120, check=True)


@pytest.fixture
def judged(cluster, tmp_path):
    """Run `tiny-hf`, changed as the test says, as a job: its verdict, its last state and its folder."""
    matrix = load_matrix(ROOT / "matrices")

    def run(*, more=(), options=(), on_say=lambda text: None, queue_seconds=120.0, **changes):
        case = matrix.case("tiny-hf")
        case = case.model_copy(update={"overrides": [*case.overrides, *more], **changes})
        partition = matrix.partition("cpu-local")
        slurm = partition.slurm.model_copy(update={"options": list(options)})
        partitions = {**matrix.partitions, "cpu-local": partition.model_copy(update={"slurm": slurm})}
        changed = type(matrix)(**{**vars(matrix), "partitions": partitions})
        folder = tmp_path / "job"
        script = prepare_job(changed, case, "cpu-local", folder, environ=os.environ, working_directory=ROOT)
        waiting = Waiting(queue_seconds, run_seconds(case), on_say)
        verdict, end = run_job(cluster, script, waiting, matrix=changed, case=case, partition="cpu-local")
        return verdict, end, folder

    return run
