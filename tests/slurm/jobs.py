"""The jobs of these tests, in the order of submission."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from slurm_pytest_plugin import Case, More
from slurm_pytest_plugin.job import Job

from grpo.matrix.schema.case import Parallel
from tests.slurm.conftest import MATRIX, NODES, Action, Cluster, matrix_job

FOR_EVER = 1_000_000  # steps
EPOCHS = "grpo.max_num_epochs=1000000"
SAVES = ["checkpointing.enabled=true", "checkpointing.save_period=5"]
LOST_STEPS = 60
PREEMPTED_STEPS = 40
SLOW_SECONDS = 0.06
TWINS = [case.id for case in MATRIX.cases.values() if case.family == "tiny_cluster"]
QUICK_TWINS = ["tiny-70b-dtensor", "tiny-70b-megatron"]  # both backends, two and four nodes


def late(seconds: float) -> str:
    """A verifier that takes its time: the run waits, and leaves the cores to others."""
    return (
        f'env.exact_match={{verifier: "tests.slurm.verifiers:late", num_workers: 1, kwargs: {{seconds: {seconds}}}, '
        "timeout_s: 7200}"
    )


# On the first node it says that this is at fault.
BLAMES = """
printf '{"exit_code": null, "stage": "setup", "failure": "infra", "exclude": ["%s"]}' "$SLURMD_NODENAME" >result.json
echo "$SLURMD_NODENAME" >>../../../blamed
[ "$(wc -l <../../../blamed)" -lt 2 ] || printf '{"exit_code": 0, "stage": "done"}' >result.json
"""
REQUEUES = "[ -e saved ] && exit 0; touch saved; scontrol requeue $SLURM_JOB_ID; sleep 60"

# A Python in front of the real one: the first canary finds its node slow; the first worker of Ray does not come up, and
# the second comes late.
FAULTY_PYTHON = """#!/bin/bash
case "$*" in
  *" canary "*)
    if [ {fault} = canary ] && mkdir {marks}/canary 2>/dev/null; then
      echo "$SLURMD_NODENAME" >{marks}/bad
      while [ $# -gt 1 ]; do [ "$1" != --bad ] || cp {marks}/bad "$2"; shift; done
      exit 1
    fi ;;
  *"slurm.node worker"*)
    if [ {fault} = ray ] && mkdir {marks}/ray 2>/dev/null; then
      echo "$SLURMD_NODENAME" >{marks}/bad
      set -- "$@" --object-store-bytes 1  # which Ray refuses
    elif [ {fault} = ray ]; then
      sleep 5
    fi ;;
esac
exec {python} "$@"
"""


def shell(name: str, script: str, **more):
    """A job of the plugin alone, which has no case."""
    defaults = {"time_limit": "00:10:00", "options": ("--cpus-per-task=1", "--mem=200")}
    return None, Case(name, script, **{**defaults, **more})


def with_python(path: Path) -> dict[str, object]:
    environment = MATRIX.partition("cpu-local").environment.model_copy(update={"path": str(path)})
    return {"environment": environment}


def faulty(folder: Path, fault: str) -> dict[str, object]:
    """A partition whose first node is at fault; `FOLDER/FAULT-marks/bad` names it."""
    marks, program = folder / f"{fault}-marks", folder / f"{fault}-environment" / "bin" / "python"
    marks.mkdir()
    program.parent.mkdir(parents=True)
    text = FAULTY_PYTHON.format(marks=shlex.quote(str(marks)), fault=fault, python=shlex.quote(sys.executable))
    program.write_text(text)
    program.chmod(0o755)
    return with_python(program.parents[1])


def paced(name: str, seconds: float):
    """25 small steps, 16 samples each, which a verifier of one process answers after so many seconds."""
    small = ["grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "policy.train_global_batch_size=16",
             "policy.train_micro_batch_size=16", "policy.logprob_batch_size=16"]  # fmt: skip
    checks = MATRIX.case("tiny-hf").checks.model_copy(
        update={"bounds": {}, "against_reference": ["timing/total", "timing/rewards"]}
    )
    return matrix_job(name, more=[late(seconds), *small], steps=25, checks=checks, max_runs=1)


def once_more(outcomes):
    return More("once more") if len(outcomes) < 2 else None


def spare() -> dict[str, object]:
    """On nodes where no other job is."""
    return {"slurm": MATRIX.partition("cpu-local").slurm.model_copy(update={"partition": "spare"})}


def two_nodes(name: str, *, more: list[str], **changes):
    """A rank on each of two nodes, and an engine that starts at once."""
    quick = ["policy.generation.backend=hf", "cluster.cpu_ranks=2"]
    return matrix_job(name, "tiny-70b-dtensor", parallel=Parallel(tensor=2), more=[*more, *quick], **changes)


def twin(name: str) -> Callable[[Path], tuple[object, Case]]:
    return lambda _: matrix_job(name, name)


JOBS: dict[str, Callable[[Path], tuple[object, Case]]] = {
    # Over all four nodes: nothing else fits beside it, so it goes first.
    "tiny-70b-megatron": twin("tiny-70b-megatron"),
    "lost": lambda _: matrix_job("lost", steps=LOST_STEPS, more=SAVES, partition=spare()),
    "limit": lambda _: matrix_job(
        "limit", steps=FOR_EVER, more=[EPOCHS, late(0.02)], time_limit="00:01:00", partition=spare()
    ),
    "preempted": lambda _: matrix_job(
        "preempted", steps=PREEMPTED_STEPS, more=[*SAVES, late(0.001)], partition=spare()
    ),
    "tiny-70b-dtensor": twin("tiny-70b-dtensor"),
    "killed": lambda folder: two_nodes(
        "killed", steps=FOR_EVER, partition=faulty(folder, "ray"), more=[EPOCHS, late(0.02)]
    ),
    "slow-node": lambda folder: matrix_job("slow-node", partition=faulty(folder, "canary")),
    "paced": lambda _: paced("paced", 0.0),
    "slow": lambda _: paced("slow", SLOW_SECONDS),
    "stuck": lambda _: matrix_job("stuck", more=["cluster.step_timeout_s=5", late(3600.0)]),
    "crash": lambda _: matrix_job("crash", more=["data.default.prompt_file=nowhere.txt"]),
    "memory": lambda _: matrix_job("memory", options=["--mem=60M"]),
    "cancelled": lambda _: matrix_job("cancelled", steps=FOR_EVER, more=[EPOCHS, late(0.02)]),
    "cancelled-saved": lambda _: matrix_job("cancelled-saved", steps=FOR_EVER, more=[EPOCHS, *SAVES]),
    "cancelled-nodes": lambda _: two_nodes("cancelled-nodes", steps=FOR_EVER, more=[EPOCHS, late(0.02)]),
    "preempted-nodes": lambda _: two_nodes(
        "preempted-nodes", steps=PREEMPTED_STEPS, more=[*SAVES, late(0.001)], partition=spare()
    ),
    "nowhere": lambda _: matrix_job("nowhere", partition=with_python(Path("/nowhere"))),
    "impossible": lambda _: matrix_job("impossible", options=["--mem=900G"]),
    "hidden": lambda _: shell("hidden", "false; true"),
    "again": lambda _: shell(
        "again", "[ -e saved ] && exit 0; touch saved; exit 85", requeue_exit_code=85, max_restarts=1
    ),
    "requeues": lambda _: shell("requeues", REQUEUES, max_restarts=1),
    "blames": lambda _: shell("blames", BLAMES, writes_result=True),
    "elsewhere": lambda _: shell("elsewhere", "true", more=once_more, max_runs=2),
    # Needs all nodes at once, and would keep others waiting for that.
    "no-others": lambda _: shell(
        "no-others",
        "true",
        nodes=NODES,
        more=once_more,
        max_runs=2,
        options=("--cpus-per-task=1", "--mem=200", "--nice=100000"),
    ),
    **{name: twin(name) for name in TWINS if name not in QUICK_TWINS},
}


def has_steps(folder: Path) -> bool:
    path = folder / "run" / "metrics.jsonl"
    return path.is_file() and path.stat().st_size > 0


def has_two_checkpoints(folder: Path) -> bool:
    path = folder / "run" / "events.jsonl"
    return path.is_file() and path.read_text().count('"checkpoint"') >= 2


def lose_node(cluster: Cluster, job: Job) -> str:
    cluster.lose_node(job.seen.nodes)
    return job.seen.nodes


def preempt(_: Cluster, job: Job) -> str:
    """By a job that is worth more."""
    urgent = ["--partition=urgent", f"--nodelist={job.seen.nodes}", "--exclusive", "--output=/dev/null"]
    subprocess.run(["sbatch", *urgent, "--wrap=sleep 2"], check=True, timeout=60)
    return job.job_id


def cancel(_: Cluster, job: Job) -> str:
    subprocess.run(["scancel", job.job_id], check=True, timeout=60)
    return job.job_id


def kill_worker(cluster: Cluster, job: Job) -> tuple[str, list[int]]:
    """On the second node; the job's number, and how many workers each node had."""
    on_nodes = [list(workers_of(job.job_id, node)) for node in cluster.client.expand(job.seen.nodes)]
    on_nodes[1][0].kill()
    return job.job_id, [len(workers) for workers in on_nodes]


def workers_of(job_id: str, node: str) -> Iterator[psutil.Process]:
    """The ranks of a job on a node, of the policy and of the engine."""
    for process in psutil.process_iter(["cmdline"]):
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        is_there = environ.get("SLURM_JOB_ID") == job_id and environ.get("SLURMD_NODENAME") == node
        if is_there and any("RankHost" in part for part in process.info["cmdline"] or []):
            yield process


ACTIONS = {
    "lost": Action(has_two_checkpoints, lose_node),
    "killed": Action(has_steps, kill_worker),
    "cancelled": Action(has_steps, cancel),
    "cancelled-saved": Action(has_steps, cancel),
    "cancelled-nodes": Action(has_steps, cancel),
    "preempted": Action(has_two_checkpoints, preempt),
    "preempted-nodes": Action(has_two_checkpoints, preempt),
}
