import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix.load import load_matrix
from grpo.matrix.schema import Partition
from grpo.matrix.slurm.script import render_script

CI = Path(__file__).parents[4] / "ci" / "slurm"
MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")
ONE_NODE = [
    (case.id, name) for case in MATRIX.cases.values() if case.nodes == 1 for name in case.partitions
]  # fmt: skip
NASTY = "a'b\"c $(touch owned) `touch owned` \\ ;&|*\n$HOME {{ x }} %s"


def changed(partition, **changes):
    return Partition.model_validate({**partition.model_dump(), **changes})


def render(case_id="tiny-hf", name="cpu-local", *, job_dir=Path("/jobs/one"), environ=None, partition=None):
    return render_script(
        MATRIX.case(case_id), name, partition or MATRIX.partition(name), job_dir,
        working_directory=Path("/work/here"), environ=environ or {},
    )  # fmt: skip


def checked(script):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--severity=warning", "-s", "bash", "-"], input=script, text=True, check=True)
    return script


@pytest.mark.parametrize("path", sorted(CI.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_of_the_one_machine_cluster_are_sound(path):
    checked(path.read_text())
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize(("case_id", "name"), ONE_NODE)
def test_every_script_of_a_node_is_snapshotted(case_id, name, snapshot):
    script = checked(render(case_id, name)).replace(sys.executable, "PYTHON")
    assert script == snapshot


def test_what_a_partition_asks_for():
    slurm = {
        "account": "acc", "partition": "gpu", "qos": "high", "reservation": "r1", "constraint": "h100&nvme",
        "gpus": "gres", "gpu_type": "h100", "cpus_per_task": 16, "exclusive": True, "options": ["--comment=x"],
    }  # fmt: skip
    partition = changed(
        MATRIX.partition("h100-80g"),
        slurm=slurm,
        network={"control_interface": "bond0", "hcas": ["mlx5_0", "mlx5_1"]},
        storage={"scratch": "/local disk"},
        ulimits={"memlock": "unlimited", "nofile": 1024},
        proxy="http://proxy:3128",
        environment={"kind": "modules", "load": ["cuda/13.0", "gcc"], "path": "/shared/venv"},
        variables=["HF_HOME", "ABSENT"],
    )
    script = checked(
        render("8b-dtensor", "h100-80g", partition=partition, environ={"HF_HOME": "/hf", "TOKEN": "s3cret"})
    )
    for line in (
        "#SBATCH --account=acc", "#SBATCH --partition=gpu", "#SBATCH --qos=high", "#SBATCH --reservation=r1",
        "#SBATCH --constraint=h100&nvme", "#SBATCH --gres=gpu:h100:8", "#SBATCH --cpus-per-task=16",
        "#SBATCH --exclusive", "#SBATCH --comment=x", "#SBATCH --export=NIL", "#SBATCH --signal=B:USR1@120",
        "export NCCL_SOCKET_IFNAME=bond0", "export GLOO_SOCKET_IFNAME=bond0", "export NCCL_IB_HCA=mlx5_0,mlx5_1",
        "export http_proxy=http://proxy:3128", "export HF_HOME=/hf", "scratch_root='/local disk'",
        "python=/shared/venv/bin/python",
    ):  # fmt: skip
        assert f"\n{line}\n" in script, line
    assert "module load cuda/13.0 gcc ||" in script
    assert "ulimit -l unlimited ||" in script
    assert "s3cret" not in script
    assert "ABSENT" not in script


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"case_id": "70b-dtensor", "name": "h100-80g"}, "8 nodes, and this version"),
        ({"case_id": "tiny-hf", "name": "h100-80g"}, "is for cpu-local, not for the partition h100-80g"),
        ({"job_dir": Path("/a b")}, "sbatch's options take"),
        ({"job_dir": Path("/a\n#SBATCH --x")}, "sbatch's options take"),
    ],
)
def test_what_cannot_be_a_job(change, message):
    with pytest.raises(MatrixError, match=message):
        render(**change)


def test_a_partition_with_too_few_gpus_or_too_little_time():
    small = changed(MATRIX.partition("h100-80g"), gpus_per_node=4)
    with pytest.raises(MatrixError, match="needs 8 GPUs a node, and h100-80g has 4"):
        render("8b-dtensor", "h100-80g", partition=small)
    short = changed(MATRIX.partition("h100-80g"), slurm={"maximum_time": "01:00:00"})
    with pytest.raises(MatrixError, match="may take 01:45:00, and h100-80g allows 01:00:00"):
        render("8b-dtensor", "h100-80g", partition=short)


def run_script(tmp_path, trainer, **changes):
    """Run a script with a trainer of our own, outside Slurm."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!{sys.executable}\n{trainer}")
    python.chmod(0o755)
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    partition = changed(
        MATRIX.partition("cpu-local"), environment={"kind": "venv", "path": str(tmp_path)},
        storage={"scratch": str(tmp_path)}, variables=["NASTY"],
    )  # fmt: skip
    case = MATRIX.case("tiny-hf").model_copy(update=changes)
    script = render_script(
        case, "cpu-local", partition, job_dir, working_directory=tmp_path, environ={"NASTY": NASTY}
    )  # fmt: skip
    process = subprocess.Popen(["bash"], stdin=subprocess.PIPE, text=True, cwd=tmp_path, stdout=subprocess.PIPE)
    return process, script, job_dir


def test_any_value_reaches_the_trainer_as_it_is(tmp_path):
    trainer = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['NASTY'], os.environ['TMPDIR']]))"
    process, script, job_dir = run_script(tmp_path, trainer, overrides=[f"logger.wandb.name={NASTY}"])
    output, _ = process.communicate(script, timeout=60)
    arguments, variable, scratch = json.loads(output)
    assert process.returncode == 0
    assert arguments[:4] == ["-m", "grpo", "train", "tiny"]
    assert f"logger.wandb.name={NASTY}" in arguments
    assert f"logger.log_dir={job_dir}/run" in arguments
    assert variable == NASTY
    assert scratch.startswith(f"{tmp_path}/grpo-0-")
    assert not os.path.exists(scratch)  # noqa: PTH110 - a name from elsewhere
    assert not list(tmp_path.rglob("owned"))
    assert json.loads((job_dir / "result.json").read_text()) == {
        "schema_version": 1, "case": "tiny-hf", "stage": "done", "exit_code": 0, "stopped_by": None,
    }  # fmt: skip


def test_the_trainers_failure_is_the_jobs(tmp_path):
    process, script, job_dir = run_script(tmp_path, "import sys; sys.exit(3)")
    process.communicate(script, timeout=60)
    assert process.returncode == 3
    result = json.loads((job_dir / "result.json").read_text())
    assert (result["stage"], result["exit_code"]) == ("trainer", 3)


def test_without_python_the_job_fails_before_the_trainer(tmp_path):
    process, script, job_dir = run_script(tmp_path, "")
    (tmp_path / "bin" / "python").unlink()
    process.communicate(script, timeout=60)
    assert process.returncode == 1
    result = json.loads((job_dir / "result.json").read_text())
    assert (result["stage"], result["exit_code"]) == ("setup", None)


def test_the_notice_before_the_time_limit_is_passed_on_and_the_trainer_waited_for(tmp_path):
    trainer = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('saved', flush=True), sys.exit(85)))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    process, script, job_dir = run_script(tmp_path, trainer)
    path = tmp_path / "job.sh"
    path.write_text(script)
    process.stdin.write(f"exec bash {path}\n")
    process.stdin.close()
    assert process.stdout.readline() == "ready\n"
    process.send_signal(10)  # SIGUSR1
    assert process.stdout.readline() == "saved\n"
    assert process.wait(timeout=60) == 85
    process.stdout.close()
    result = json.loads((job_dir / "result.json").read_text())
    assert (result["exit_code"], result["stopped_by"]) == (85, "USR1")
