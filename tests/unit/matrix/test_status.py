import json
from pathlib import Path

import pytest
from slurm_pytest_plugin.ledger import Entry, Ledger

from grpo.errors import MatrixError, SlurmError
from grpo.matrix.load import load_matrix
from grpo.matrix.show.status import status_lines, step_words
from grpo.matrix.slurm import jobs
from grpo.matrix.status import JobView, StepView, case_of, find_folder, status_of
from grpo.telemetry.manifest import Manifest

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
# Of the report that this project began with: the user's 70B run against the published row.
SLOW = {"total": 178.0, "policy_training": 31.0, "refit": 26.0, "generation": 87.0, "logprobs": 20.0}


def run_directory(folder, seconds=None, steps=14, *, checkpoint=None, state="running"):
    folder.mkdir(parents=True)
    Manifest(
        run_id="r", name="run", command=["grpo"], started=1000.0, state=state,
        ended=None if state == "running" else 1600.0,
        grpo_version="0", host="another", process_id=1, process_started=0.0,
    ).write(folder)  # fmt: skip
    (folder / "config.yaml").write_text(
        "# schema_version: 1\ngrpo: {max_num_steps: 32}\ncluster: {num_nodes: 8, gpus_per_node: 8}\n"
    )
    timing = {f"timing/{name}": value for name, value in (seconds or SLOW).items()}
    lines = [{"schema_version": 1, "step": step, **timing} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if checkpoint is not None:
        event = {
            "schema_version": 1,
            "time": 1.0,
            "kind": "checkpoint",
            "step": checkpoint,
            "path": f"ck/step_{checkpoint}",
        }
        (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    return folder


def job_folder(tmp_path, case="70b-megatron", attempt=1):
    folder = tmp_path / "r1" / case / f"attempt-{attempt}"
    folder.mkdir(parents=True)
    (folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=8\n# Case {case} on partition h100-80g. Rendered\n")
    return folder


def test_a_run_that_is_slower_than_its_reference_says_what_grew(tmp_path):
    folder = job_folder(tmp_path)
    run_directory(folder / "run", checkpoint=10)
    job = JobView("7", "RUNNING", nodes="gpu[1-8]", elapsed=1800.0)
    status = status_of(folder, job, MATRIX)
    assert status.gpu_hours == 32.0
    assert status_lines(status) == [
        str(folder),
        "case        70b-megatron on h100-80g",
        "job         7 RUNNING on gpu[1-8]",
        "run         running",
        "step        14 of 32",
        "checkpoint  step 10: ck/step_10",
        "cost        32.00 GPU-hours, 0:30:00 on the clock",
        "median step 178 s (147, +21 %): refit +12, other +11, policy training +3, generation +3, log-probs +2",
    ]


def test_a_job_in_the_queue_says_what_it_waits_for(tmp_path):
    folder = job_folder(tmp_path)
    lines = status_lines(status_of(folder, JobView("7", "PENDING", "Priority"), MATRIX))
    assert lines[2:] == ["job         7 PENDING (Priority)", "run         not begun"]


def test_a_job_that_ended_before_the_trainer_says_where(tmp_path):
    folder = job_folder(tmp_path)
    (folder / "result.json").write_text(
        json.dumps({"schema_version": 1, "case": "c", "stage": "setup", "exit_code": None})
    )
    assert (
        status_lines(status_of(folder, JobView("7", "FAILED"), MATRIX))[-1]
        == "run         none: the job ended in its setup"
    )


def test_a_run_without_a_job_or_a_case(tmp_path):
    run = run_directory(tmp_path / "mine", {"total": 2.5}, steps=3, state="completed")
    status = status_of(run, None, None)
    assert (status.case, status.job, status.seconds) == (None, None, 600.0)
    assert status_lines(status)[1:] == [
        "run         completed", "step        3 of 32", "checkpoint  none",
        "cost        10.67 GPU-hours, 0:10:00 on the clock",
        "median step 2.5 s over 3 steps",
    ]  # fmt: skip


def test_a_running_run_counts_until_now(tmp_path):
    run = run_directory(tmp_path / "mine")
    assert status_of(run, None, None, now=1030.0).seconds == 30.0


def test_a_step_like_the_references_names_no_phase():
    assert step_words(StepView(147.2, 20, 147.0, ())) == "147.2 s (147, +0.14 %)"


def test_what_a_path_leads_to(tmp_path):
    folder, again = job_folder(tmp_path), job_folder(tmp_path, attempt=2)
    run_directory(again / "run")
    assert find_folder(folder) == folder
    assert find_folder(again / "run") == again
    assert find_folder(tmp_path / "r1") in {folder, again}
    plain = run_directory(tmp_path / "plain")
    assert find_folder(plain) == plain
    job_folder(tmp_path, case="8b-dtensor")
    with pytest.raises(MatrixError, match=r"jobs of several cases: name one of .*70b-megatron, .*8b-dtensor"):
        find_folder(tmp_path / "r1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MatrixError, match="neither the folder of a job"):
        find_folder(tmp_path / "empty")
    with pytest.raises(MatrixError, match="neither a folder nor the number of a job"):
        find_folder(tmp_path / "nothing")
    assert case_of(plain) == (None, None)


def test_the_job_of_a_folder_is_in_its_runs_ledger(tmp_path):
    folder, again = job_folder(tmp_path), job_folder(tmp_path, attempt=2)
    assert jobs.last_job(folder) is None
    ledger = Ledger(tmp_path / "r1")
    ledger.write(Entry("70b-megatron", 1, 0, "slurm"))
    ledger.write(Entry("70b-megatron", 1, 0, "slurm", (), "7"))
    ledger.write(Entry("70b-megatron", 2, 0, "slurm", ("n1",), "8"))
    assert (jobs.last_job(folder), jobs.last_job(again)) == ("7", "8")


def test_without_slurm_the_folder_alone_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = job_folder(tmp_path)
    Ledger(tmp_path / "r1").write(Entry("70b-megatron", 1, 0, "slurm", (), "7"))
    assert jobs.job_in(folder) == JobView("7", "no Slurm here that knows it")
    Ledger(tmp_path / "r1").write(Entry("70b-megatron", 1, 0, "local", (), "local-1"))
    assert jobs.job_in(folder) == JobView("local-1", "on the machine that submitted it")
    with pytest.raises(SlurmError, match="scontrol cannot be asked for job 7"):
        jobs.job_folder("7")


def test_the_folder_of_a_job_number_is_asked_of_slurm(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/bash\n[ $4 = 7 ] || { echo 'Invalid job id specified' >&2; exit 1; }\necho JobId=7 WorkDir=/a/b X=1\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert jobs.job_folder("7") == Path("/a/b")
    with pytest.raises(SlurmError, match=r"Slurm does not know job 8 .* Invalid job id specified"):
        jobs.job_folder("8")
