"""The job script of a case on a partition: a pure function of both, safe against any value."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpo.config import Config
from grpo.errors import EXIT_REQUEUE, MatrixError
from grpo.matrix.resolve import overrides_of
from grpo.matrix.schema import Case, Partition
from grpo.matrix.schema.partition import Apptainer, Modules, Pyxis, Venv
from grpo.matrix.schema.types import seconds_of
from grpo.matrix.slurm.interrupt import command
from grpo.matrix.slurm.node import HEAD_SECONDS

NOTICE_SECONDS = 120  # before the time limit, for a last checkpoint
JOIN_SECONDS = 300  # for all nodes to join Ray
KILL_SECONDS = {"slurm": 30, "local": 10}  # from SIGTERM to SIGKILL: Slurm's default, and that of a job on this machine
MAX_RESTARTS = 3  # of a job that saved
RUN = "run"  # the run directory, in the job's folder
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_PATH = re.compile(r"[A-Za-z0-9_./+@=,:-]+")
_GIB = 1 << 30


def check_job(case: Case, name: str, partition: Partition, config: Config) -> None:
    """Raise MatrixError for a case that the partition cannot run. `config` is what the case resolves to."""
    if name not in case.partitions:
        raise MatrixError(f"the case {case.id} is for {', '.join(case.partitions)}, not for the partition {name}")
    if case.nodes > 1 and config.cluster.launcher != "ray":
        raise MatrixError(
            f"the case {case.id} has {case.nodes} nodes, and cluster.launcher={config.cluster.launcher}: ray"
        )
    if case.gpus_per_node > partition.gpus_per_node:
        raise MatrixError(f"{case.id} needs {case.gpus_per_node} GPUs a node, and {name} has {partition.gpus_per_node}")
    limit = partition.slurm.maximum_time
    if limit is not None and seconds_of(case.time_limit) > seconds_of(limit):
        raise MatrixError(f"{case.id} may take {case.time_limit}, and {name} allows {limit}")


def restarts_of(config: Config) -> int:
    """How often the job may be started again: a trainer without checkpoints would begin anew."""
    return MAX_RESTARTS if config.checkpointing.enabled else 0


def render_body(
    case: Case,
    partition_name: str,
    partition: Partition,
    config: Config,
    job_dir: Path,
    *,
    executor: str,
    working_directory: Path,
    environ: Mapping[str, str],
    reference: Path | None = None,
) -> str:
    """Bash, without the options of sbatch. `job_dir` gets the log, `result.json` and the run directory.

    Of `environ` the job gets the variables that the partition names and nothing else. With `executor` "local" the
    nodes are pretended ones of one machine. The trainer shows its step against that of the file `reference`.

    Raises MatrixError for what such a job cannot be.
    """
    check_job(case, partition_name, partition, config)
    if not _PATH.fullmatch(str(job_dir)):
        raise MatrixError(
            f"the job's folder {str(job_dir)!r}: sbatch's options take letters, digits and _./+@=,:- only"
        )
    environment = partition.environment
    if isinstance(environment, Pyxis) and executor == "local":
        raise MatrixError(f"{partition_name}: environment.kind=pyxis starts containers by Slurm, which is not here")
    return _templates().get_template("job.sh.j2").render(
        case_id=case.id,
        partition=partition_name,
        job_dir=job_dir,
        nodes=case.nodes,
        gpus_per_node=case.gpus_per_node,
        executor=executor,
        memlock=partition.ulimits.memlock,
        nofile=partition.ulimits.nofile,
        search_path=SEARCH_PATH,
        variables=sorted(_variables(partition, environ).items()),
        scratch=partition.storage.scratch,
        modules=environment.load if isinstance(environment, Modules) else [],
        container=_container(environment, working_directory) if isinstance(environment, Apptainer) else [],
        pyxis=_pyxis(environment) if isinstance(environment, Pyxis) else "",
        python=_python(environment),
        working_directory=working_directory,
        facts=list(_facts(case, partition, config)),
        ray=case.trains and case.nodes > 1,
        token=case.trains and config.cluster.launcher == "ray",
        head_seconds=int(HEAD_SECONDS) + 30,
        join_seconds=JOIN_SECONDS,
        kill_seconds=KILL_SECONDS[executor],
        max_restarts=restarts_of(config),
        requeue_exit_code=EXIT_REQUEUE,
        trains=case.trains,
        trainer=_trainer(case, job_dir),
        shown=[] if reference is None else [f"--reference={reference}", f"--reference-warmup={case.warmup_steps}"],
        benchmark=[] if case.benchmark is None else [case.benchmark.module, *case.benchmark.arguments],
        ray_argument=' "cluster.ray_address=$ray_address"' if case.trains and case.nodes > 1 else "",
    )  # fmt: skip


def sbatch_options(partition: Partition) -> Iterator[str]:
    """What the site asks for, besides account, partition and GPUs."""
    slurm = partition.slurm
    yield "--ntasks-per-node=1"
    for name in ("qos", "reservation", "constraint"):
        value = getattr(slurm, name)
        if value is not None:
            yield f"--{name}={value}"
    if slurm.cpus_per_task is not None:
        yield f"--cpus-per-task={slurm.cpus_per_task}"
    if slurm.exclusive:
        yield "--exclusive"
    yield from slurm.options


def gpu_options(case: Case, partition: Partition) -> list[str]:
    """How this site asks for the case's GPUs."""
    slurm = partition.slurm
    if not case.gpus_per_node or slurm.gpus == "none":
        return []
    count = f"{slurm.gpu_type}:{case.gpus_per_node}" if slurm.gpu_type else str(case.gpus_per_node)
    return [f"--gpus-per-node={count}" if slurm.gpus == "gpus-per-node" else f"--gres=gpu:{count}"]


def _trainer(case: Case, job_dir: Path) -> list[str]:
    """What `python -m` runs."""
    run = job_dir / RUN
    arguments = ["train", case.recipe, *overrides_of(case), f"logger.log_dir={run}"]
    if case.interrupted is None:
        return ["grpo", *arguments]
    return command(case.interrupted.after_step, run, arguments)


def _facts(case: Case, partition: Partition, config: Config) -> Iterator[str]:
    """What each node is checked for, and what its Ray offers."""
    network, store = partition.network, partition.ray.object_store_gib
    if network.control_interface is not None:
        yield f"--interface={network.control_interface}"
    if network.hcas:
        yield f"--hcas={','.join(network.hcas)}"
    yield f"--gpus={case.gpus_per_node}"
    # On CPUs a rank takes one, so that the ranks are spread over the nodes evenly.
    yield f"--cpus={2 * case.gpus_per_node or -(-config.cluster.cpu_ranks // case.nodes)}"
    if store is not None:
        yield f"--object-store-bytes={int(store * _GIB)}"


def _variables(partition: Partition, environ: Mapping[str, str]) -> dict[str, str]:
    variables = {name: environ[name] for name in partition.variables if name in environ}
    network = partition.network
    if network.control_interface is not None:
        variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = network.control_interface
    if network.hcas:
        variables["NCCL_IB_HCA"] = ",".join(network.hcas)
    if partition.proxy is not None:
        variables |= {"http_proxy": partition.proxy, "https_proxy": partition.proxy}
    return variables


def _python(environment: Venv | Modules | Pyxis | Apptainer) -> str:
    if isinstance(environment, Pyxis | Apptainer):
        return environment.python
    return sys.executable if environment.path is None else f"{environment.path}/bin/python"


def _container(environment: Apptainer, working_directory: Path) -> list[str]:
    mounts = [part for mount in environment.mounts for part in ("--bind", mount)]
    return ["apptainer", "exec", "--nv", *mounts, "--pwd", str(working_directory), environment.image]


def _pyxis(environment: Pyxis) -> str:
    options = [f"--container-image={environment.image}"]
    if environment.mounts:
        options.append(f"--container-mounts={','.join(environment.mounts)}")
    return "".join(f" {_quote(option)}" for option in options)


def _templates() -> Environment:
    environment = Environment(  # noqa: S701 - bash, where `quote` escapes
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",  # bash has {# in ${#names[@]}
        comment_end_string="#>",
    )
    environment.filters["quote"] = _quote
    return environment


def _quote(value: Any) -> str:
    text = shlex.quote(str(value))
    # Of these bash needs none, but who reads an array takes them for separators.
    return f"'{text}'" if "," in text and text == str(value) else text
