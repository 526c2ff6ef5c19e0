"""The job script of a case on a partition: a pure function of both, safe against any value."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpo.errors import MatrixError
from grpo.matrix.resolve import overrides_of
from grpo.matrix.schema import Case, Partition
from grpo.matrix.schema.types import seconds_of

NOTICE_SECONDS = 120  # before the time limit, for a last checkpoint
RUN = "run"  # the run directory, in the job's folder
LOG = "job.log"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_PATH = re.compile(r"[A-Za-z0-9_./+@=,:-]+")


def render_script(
    case: Case,
    partition_name: str,
    partition: Partition,
    job_dir: Path,
    *,
    working_directory: Path,
    environ: Mapping[str, str],
) -> str:
    """Bash for sbatch. `job_dir` gets the log, `result.json` and the run directory; both paths are absolute.

    Of `environ` the job gets the variables that the partition names and nothing else. Raises MatrixError for a case
    that the partition cannot run.
    """
    _check(case, partition_name, partition, job_dir)
    template = _templates().get_template("job.sh.j2")
    environment = partition.environment
    return template.render(
        sbatch=list(_options(case, partition, job_dir)),
        case_id=case.id,
        partition=partition_name,
        job_dir=job_dir,
        memlock=partition.ulimits.memlock,
        nofile=partition.ulimits.nofile,
        search_path=SEARCH_PATH,
        variables=sorted(_variables(partition, environ).items()),
        scratch=partition.storage.scratch,
        modules=environment.load if environment.kind == "modules" else [],
        python=sys.executable if environment.path is None else f"{environment.path}/bin/python",
        working_directory=working_directory,
        arguments=["train", case.recipe, *overrides_of(case), f"logger.log_dir={job_dir / RUN}", "--quiet"],
    )


def _check(case: Case, name: str, partition: Partition, job_dir: Path) -> None:
    if name not in case.partitions:
        raise MatrixError(f"the case {case.id} is for {', '.join(case.partitions)}, not for the partition {name}")
    if case.nodes > 1:
        raise MatrixError(
            f"the case {case.id} has {case.nodes} nodes, and this version's job script starts the trainer on one"
        )
    if case.gpus_per_node > partition.gpus_per_node:
        raise MatrixError(f"{case.id} needs {case.gpus_per_node} GPUs a node, and {name} has {partition.gpus_per_node}")
    limit = partition.slurm.maximum_time
    if limit is not None and seconds_of(case.time_limit) > seconds_of(limit):
        raise MatrixError(f"{case.id} may take {case.time_limit}, and {name} allows {limit}")
    if not _PATH.fullmatch(str(job_dir)):
        raise MatrixError(
            f"the job's folder {str(job_dir)!r}: sbatch's options take letters, digits and _./+@=,:- only"
        )


def _options(case: Case, partition: Partition, job_dir: Path) -> Iterator[str]:
    slurm = partition.slurm
    yield f"--job-name=grpo-{case.id}"
    yield f"--nodes={case.nodes}"
    yield "--ntasks-per-node=1"
    yield f"--time={case.time_limit}"
    yield f"--output={job_dir / LOG}"
    # The submitting shell's variables are the user's: secrets among them.
    yield "--export=NIL"
    yield "--no-requeue"
    if seconds_of(case.time_limit) > 2 * NOTICE_SECONDS:
        yield f"--signal=B:USR1@{NOTICE_SECONDS}"
    if case.gpus_per_node and slurm.gpus != "none":
        count = f"{slurm.gpu_type}:{case.gpus_per_node}" if slurm.gpu_type else str(case.gpus_per_node)
        yield f"--gpus-per-node={count}" if slurm.gpus == "gpus-per-node" else f"--gres=gpu:{count}"
    for name in ("account", "partition", "qos", "reservation", "constraint"):
        value = getattr(slurm, name)
        if value is not None:
            yield f"--{name}={value}"
    if slurm.cpus_per_task is not None:
        yield f"--cpus-per-task={slurm.cpus_per_task}"
    if slurm.exclusive:
        yield "--exclusive"
    yield from slurm.options


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


def _templates() -> Environment:
    environment = Environment(  # noqa: S701 - bash, where `quote` escapes
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return environment
