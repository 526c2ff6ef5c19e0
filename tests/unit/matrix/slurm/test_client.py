import os
import stat

import pytest

from grpo.errors import SlurmError
from grpo.matrix.slurm import client
from grpo.matrix.slurm.client import JobState, SlurmClient


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands of our own in place of Slurm's."""

    def command(name, body):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    for name in ("sbatch", "squeue", "scontrol", "sacct", "scancel"):
        command(name, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    return command


def test_submitting_gives_the_id_without_the_cluster(slurm, tmp_path):
    slurm("sbatch", 'echo "12345;cluster"')
    assert SlurmClient().submit(tmp_path / "job.sh") == "12345"


def test_what_sbatch_says_is_told(slurm, tmp_path):
    slurm("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    with pytest.raises(SlurmError, match="Invalid account"):
        SlurmClient().submit(tmp_path / "job.sh")


def test_a_job_in_the_queue(slurm):
    slurm("squeue", "echo 'PENDING|Resources|'")
    assert SlurmClient().state("1") == JobState("PENDING", "Resources", "")
    slurm("squeue", "echo 'RUNNING|None|node[1-2]'")
    assert SlurmClient().state("1") == JobState("RUNNING", "None", "node[1-2]")


def test_a_job_that_ended_is_told_by_the_controller(slurm):
    slurm("squeue", "echo 'COMPLETED|None|node1'")
    slurm("scontrol", "echo 'JobId=1 JobName=x JobState=FAILED Reason=NonZeroExitCode NodeList=node1 Command=/a b'")
    assert SlurmClient().state("1") == JobState("FAILED", "NonZeroExitCode", "node1")


def test_a_job_that_the_controller_forgot_is_told_by_accounting(slurm):
    slurm("sacct", "echo 'CANCELLED by 0|node1'")
    assert SlurmClient().state("1") == JobState("CANCELLED", "", "node1")
    assert SlurmClient().state("1").final


def test_a_job_that_nobody_knows(slurm):
    with pytest.raises(SlurmError, match="neither squeue, scontrol nor sacct knows job 1"):
        SlurmClient().state("1")


def test_a_cluster_that_does_not_answer_is_given_up(slurm, monkeypatch, tmp_path):
    monkeypatch.setattr(client, "COMMAND_SECONDS", 0.2)
    slurm("sbatch", "exec tail -f /dev/null")
    with pytest.raises(SlurmError, match=r"sbatch did not answer in 0 s"):
        SlurmClient().submit(tmp_path / "job.sh")


def test_without_slurm_it_is_said_where_there_is_some(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"no sbatch on this machine.*ci/slurm/up\.sh"):
        SlurmClient()
