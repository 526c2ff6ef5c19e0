import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_pytest_plugin import Place
from slurm_pytest_plugin import classify as classify_job
from slurm_pytest_plugin import read_result as read_job_result
from slurm_pytest_plugin.script import render as render_files

from grpo.errors import EXIT_REQUEUE, MatrixError
from grpo.matrix.load import load_matrix
from grpo.matrix.schema import Partition
from grpo.matrix.slurm.cases import job_of

ROOT = Path(__file__).resolve().parents[4]
CI = ROOT / "ci" / "slurm"
MATRIX = load_matrix(ROOT / "matrices")
JOBS = [(case.id, name) for case in MATRIX.cases.values() for name in case.partitions]
NASTY = "a'b\"c $(touch owned) `touch owned` \\ ;&|*\n$HOME {{ x }} {# y #} %s"
TWINS = [f"{size}-{backend}" for size in ("8b", "70b") for backend in ("dtensor", "megatron")]


def changed(partition, **changes):
    return Partition.model_validate({**partition.model_dump(), **changes})


def matrix_with(name, partition):
    return dataclasses.replace(MATRIX, partitions={**MATRIX.partitions, name: partition})


def render(
    case_id="tiny-hf", name="cpu-local", *, job_dir=Path("/jobs/one"), environ=None, partition=None, executor="slurm",
    working_directory=Path("/work/here"), **changes,
):  # fmt: skip
    matrix = MATRIX if partition is None else matrix_with(name, partition)
    case = MATRIX.case(case_id).model_copy(update=changes)
    job = job_of(matrix, case, name, environ=environ or {}, working_directory=working_directory)
    return render_files(job, Place(job_dir, executor, 1))["job.sh"]


def checked(script):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck:
        subprocess.run([shellcheck, "--severity=warning", "-s", "bash", "-"], input=script, text=True, check=True)
    return script


@pytest.mark.parametrize("path", sorted(CI.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_of_the_one_machine_cluster_are_sound(path):
    checked(path.read_text())
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize(("case_id", "name"), JOBS)
def test_every_script_is_snapshotted(case_id, name, snapshot):
    assert checked(render(case_id, name)).replace(sys.executable, "PYTHON").replace(str(ROOT), "ROOT") == snapshot


def structure(script):
    """The script without what a case or a partition puts into it."""
    text = re.sub(r"#SBATCH .*\n", "", script)
    text = re.sub(r"^# Case .*", "# Case", text, flags=re.MULTILINE)
    text = re.sub(r"^(node_count|gpu_ranks|python|scratch_root|facts)=.*", r"\1=", text, flags=re.MULTILINE)
    text = re.sub(r"^ulimit .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"--partition \S+ --quiet", "--partition P --quiet", text)
    text = re.sub(r"(printf .*\n +)\S+ ", r"\1CASE ", text)
    return re.sub(
        r"^(here .* -m grpo train).*?( \"cluster\.ray_address=\$ray_address\")? \"cluster\.canary_file=\S+\" &$",
        r"\1\2 &",
        text,
        flags=re.MULTILINE,
    )


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_differs_from_its_original_in_values_alone(name):
    original, twin = render(name, "h100-80g"), render(f"tiny-{name}")
    assert structure(original) == structure(twin)
    assert "cluster.launcher=ray" in twin
    assert MATRIX.case(name).recipe == MATRIX.case(f"tiny-{name}").recipe
    degrees, small = MATRIX.case(name).parallel, MATRIX.case(f"tiny-{name}").parallel
    for degree, value in degrees:
        assert (getattr(small, degree) > 1) <= (value > 1), degree


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
        ray={"object_store_gib": 2},
        environment={"kind": "modules", "load": ["cuda/13.0", "gcc"], "path": "/shared/venv"},
        variables=["HF_HOME", "ABSENT"],
    )
    script = checked(
        render("8b-dtensor", "h100-80g", partition=partition, environ={"HF_HOME": "/hf", "TOKEN": "s3cret"})
    )
    for line in (
        "#SBATCH --qos=high", "#SBATCH --reservation=r1", "#SBATCH --constraint=h100&nvme",
        "#SBATCH --gres=gpu:h100:8", "#SBATCH --cpus-per-task=16", "#SBATCH --exclusive", "#SBATCH --comment=x",
        "#SBATCH --export=NIL", "#SBATCH --signal=B:USR1@120", "export NCCL_SOCKET_IFNAME=bond0",
        "export GLOO_SOCKET_IFNAME=bond0", "export NCCL_IB_HCA='mlx5_0,mlx5_1'", "export http_proxy=http://proxy:3128",
        "export HF_HOME=/hf", "scratch_root='/local disk'", "python=/shared/venv/bin/python",
    ):  # fmt: skip
        assert f"\n{line}\n" in script, line
    assert (
        "facts=(--interface=bond0 '--hcas=mlx5_0,mlx5_1' --gpus=8 --cpus=16 --object-store-bytes=2147483648 " in script
    )
    assert "module load cuda/13.0 gcc ||" in script
    assert "ulimit -l unlimited ||" in script
    assert "s3cret" not in script
    assert "ABSENT" not in script
    job = job_of(
        matrix_with("h100-80g", partition),
        MATRIX.case("8b-dtensor"),
        "h100-80g",
        environ={},
        working_directory=Path("/w"),
    )
    assert (job.account, job.partition) == ("acc", "gpu")


@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        (
            {"kind": "pyxis", "image": "reg#grpo:1", "mounts": ["/a:/a", "/b:/b"]},
            [
                "'--container-image=reg#grpo:1' '--container-mounts=/a:/a,/b:/b')",
                'here() { on_nodes 1 -w "${names[0]}" "$@"; }',
            ],
        ),
        (
            {"kind": "apptainer", "image": "/i m/grpo.sif", "mounts": ["/a:/a"], "python": "/opt/python"},
            ["inside=(apptainer exec --nv --bind /a:/a --pwd /work/here '/i m/grpo.sif')", "python=/opt/python"],
        ),
    ],
)
def test_containers(environment, lines):
    partition = changed(MATRIX.partition("cpu-local"), environment=environment)
    script = checked(render("tiny-70b-dtensor", partition=partition))
    for line in lines:
        assert line in script
    assert "no Python at" not in script


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"case_id": "tiny-hf", "name": "h100-80g"}, "is for cpu-local, not for the partition h100-80g"),
        ({"job_dir": Path("/a b")}, "sbatch's options take"),
        ({"job_dir": Path("/a\n#SBATCH --x")}, "sbatch's options take"),
    ],
)
def test_what_cannot_be_a_job(change, message):
    with pytest.raises((MatrixError, ValueError), match=message):
        render(**change)


def test_a_partition_with_too_few_gpus_or_too_little_time():
    small = changed(MATRIX.partition("h100-80g"), gpus_per_node=4)
    with pytest.raises(MatrixError, match="needs 8 GPUs a node, and h100-80g has 4"):
        render("8b-dtensor", "h100-80g", partition=small)
    short = changed(MATRIX.partition("h100-80g"), slurm={"maximum_time": "01:00:00"})
    with pytest.raises(MatrixError, match="may take 01:45:00, and h100-80g allows 01:00:00"):
        render("8b-dtensor", "h100-80g", partition=short)


def test_pyxis_needs_slurm():
    partition = changed(MATRIX.partition("cpu-local"), environment={"kind": "pyxis", "image": "x"})
    with pytest.raises(MatrixError, match="kind=pyxis starts containers by Slurm"):
        render(partition=partition, executor="local")


# A python that answers for the programs of the job script, and hands the trainer to the test's own.
PYTHON = """#!{python}
import os, sys
if sys.argv[1:4] == ["-m", "grpo", "canary"]:
    if {slow!r}:
        open(sys.argv[sys.argv.index("--bad") + 1], "w").write({slow!r})
    if {canary} == 137:
        os.kill(os.getpid(), 9)
    sys.exit({canary})
if sys.argv[1:3] == ["-m", "grpo.matrix.slurm.node"]:
    name = sys.argv[sys.argv.index("--name") + 1] if "--name" in sys.argv else ""
    if sys.argv[3] == "check":
        open(os.path.join({nodes!r}, name + ".json"), "w").close()
        if name == {bad!r}:
            open(os.path.join({nodes!r}, name + ".bad"), "w").close()
            sys.exit(1)
    sys.exit(0)
{trainer}
"""


def run_script(tmp_path, trainer, *, bad="", canary=0, slow="", **changes):
    """Run a script with a trainer of our own, outside Slurm."""
    (tmp_path / "bin").mkdir()
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(
        PYTHON.format(
            python=sys.executable,
            nodes=f"{job_dir}/nodes",
            bad=bad,
            canary=canary,
            slow=slow,
            trainer=trainer,
        )
    )
    python.chmod(0o755)
    partition = changed(
        MATRIX.partition("cpu-local"), environment={"kind": "venv", "path": str(tmp_path)},
        storage={"scratch": str(tmp_path)}, variables=["NASTY"],
    )  # fmt: skip
    script = render(
        partition=partition, job_dir=job_dir, environ={"NASTY": NASTY}, executor="local", working_directory=tmp_path,
        **changes,
    )  # fmt: skip
    (job_dir / "job.sh").write_text(script)
    process = subprocess.Popen(["bash", job_dir / "job.sh"], text=True, cwd=tmp_path, stdout=subprocess.PIPE)
    return process, job_dir


def result_of(job_dir):
    return json.loads((job_dir / "result.json").read_text())


def test_any_value_reaches_the_trainer_as_it_is(tmp_path):
    trainer = "import json; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    overrides = [*MATRIX.case("tiny-hf").overrides, f"logger.wandb.name={json.dumps(NASTY)}"]
    process, job_dir = run_script(tmp_path, trainer, overrides=overrides)
    output, _ = process.communicate(timeout=60)
    arguments, environ = json.loads(output)
    assert process.returncode == 0
    assert arguments[:4] == ["-m", "grpo", "train", "tiny"]
    assert not any(argument.startswith("--reference") for argument in arguments)  # this case has none
    assert overrides[-1] in arguments
    assert f"logger.log_dir={job_dir}/run" in arguments
    assert environ["NASTY"] == NASTY
    assert environ["TMPDIR"].startswith(f"{tmp_path}/grpo-")
    assert not Path(environ["TMPDIR"]).exists()
    assert not list(tmp_path.rglob("owned"))
    assert result_of(job_dir) == {
        "schema_version": 1, "case": "tiny-hf", "stage": "done", "step": "trainer", "exit_code": 0, "stopped_by": None,
        "failure": None, "exclude": [],
    }  # fmt: skip


def test_scratch_is_the_users_alone_and_the_token_of_ray_is_too(tmp_path):
    trainer = (
        "import json\nfrom pathlib import Path\n"
        "token = Path(os.environ['RAY_AUTH_TOKEN_PATH'])\n"
        "print(json.dumps([Path(os.environ['TMPDIR']).stat().st_mode & 0o777, token.stat().st_mode & 0o777, "
        "token.read_text(), os.environ['RAY_AUTH_MODE']]))"
    )
    overrides = [*MATRIX.case("tiny-hf").overrides, "cluster.launcher=ray"]
    process, job_dir = run_script(tmp_path, trainer, overrides=overrides)
    scratch, mode, token, auth = json.loads(process.communicate(timeout=60)[0])
    assert (scratch, mode, auth) == (0o700, 0o600, "token")
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert not (job_dir / "ray-token").exists()


def test_the_trainers_failure_is_the_jobs(tmp_path):
    process, job_dir = run_script(tmp_path, "sys.exit(3)")
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert (result_of(job_dir)["stage"], result_of(job_dir)["exit_code"]) == ("trainer", 3)


def test_without_python_the_job_fails_before_the_trainer(tmp_path):
    process, job_dir = run_script(tmp_path, "")
    process.communicate(timeout=60)
    (tmp_path / "bin" / "python").unlink()
    (job_dir / "result.json").unlink()
    done = subprocess.run(["bash", job_dir / "job.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no Python at" in done.stderr
    result = result_of(job_dir)
    assert (result["stage"], result["step"], result["exit_code"]) == ("setup", "environment", None)


@pytest.mark.parametrize(
    ("more", "step", "exclude"),
    [
        ({"bad": "here1"}, "nodes", ["here1"]),
        ({"canary": 1}, "canary", []),
        ({"canary": 1, "slow": 'gpu-7.site\nno"name\ngpu-9\n'}, "canary", ["gpu-7.site", "gpu-9"]),
    ],
)
def test_nodes_that_fail_their_check_or_the_canary_fail_the_job_as_infra(tmp_path, more, step, exclude):
    process, job_dir = run_script(tmp_path, "print('trained')", **more)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == ""
    result = result_of(job_dir)
    assert (result["stage"], result["step"], result["exit_code"]) == ("setup", step, None)
    assert (result["failure"], result["exclude"]) == ("infra", exclude)


def test_a_canary_that_is_killed_says_nothing_of_the_nodes(tmp_path):
    process, job_dir = run_script(tmp_path, "print('trained')", canary=137)
    process.communicate(timeout=60)
    result = result_of(job_dir)
    assert (result["stage"], result["exit_code"], result["failure"]) == ("setup", 137, None)
    assert classify_job("FAILED", read_job_result(job_dir)) == "out_of_memory"


def test_a_canary_that_passes_goes_before_the_trainer(tmp_path):
    process, job_dir = run_script(tmp_path, "print(sys.argv[-1])")
    assert process.communicate(timeout=60)[0] == f"cluster.canary_file={job_dir}/canary.json\n"
    assert result_of(job_dir)["stage"] == "done"


def test_the_trainer_shows_its_step_against_the_reference():
    script = render("70b-megatron", "h100-80g")
    assert f" --reference={ROOT}/matrices/references/h100-80g/70b-megatron.yaml --reference-warmup=10 " in script
    assert "--reference" not in render("8b-megatron", "h200-141g")  # a reference that has no figures yet


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_a_notice_is_passed_on_and_the_trainer_waited_for(tmp_path, name):
    trainer = (
        "import signal\n"
        f"signal.signal(signal.SIG{name}, lambda *_: (print('saved', flush=True), sys.exit({EXIT_REQUEUE})))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    process, job_dir = run_script(tmp_path, trainer)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[f"SIG{name}"])
    assert process.stdout.readline() == "saved\n"
    assert process.wait(timeout=60) == EXIT_REQUEUE
    process.stdout.close()
    assert (result_of(job_dir)["exit_code"], result_of(job_dir)["stopped_by"]) == (EXIT_REQUEUE, name)


def test_only_a_job_that_saves_asks_to_be_started_again():
    saving = [*MATRIX.case("tiny-hf").overrides, "checkpointing.enabled=true"]
    script = checked(render(overrides=saving))
    assert "#SBATCH --requeue\n" in script
    assert f'[ "$exit_code" = {EXIT_REQUEUE} ]' in script
    assert "scontrol requeue" in script
    assert "scontrol requeue" not in render()
    assert "#SBATCH --no-requeue\n" in render()
