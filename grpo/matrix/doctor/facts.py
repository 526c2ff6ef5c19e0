"""What is looked at, gathered once: the checks decide from this alone."""

import importlib.metadata
import os
import resource
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from grpo.hub.store import store_home
from grpo.telemetry.environment import describe_environment, describe_node

DISTRIBUTION = "grpo-matrix"
_LOCKS = Path(__file__).resolve().parents[3] / "ci" / "locks"
_INFINIBAND = Path("/sys/class/infiniband")
_SHM = Path("/dev/shm")  # noqa: S108 - it is looked at, and nothing is written there


@dataclass(frozen=True)
class Folder:
    """A folder, or the nearest one above it that exists."""

    path: str
    writable: bool
    free_gib: float


@dataclass(frozen=True)
class Facts:
    """The machine and the environment of this process."""

    python: tuple[int, int]
    packages: Mapping[str, str]  # installed versions by name
    requirements: tuple[str, ...]  # of this distribution, with their markers
    locked: Mapping[str, str]  # of the stack's lock; {} outside a checkout
    cuda: str | None
    node: Mapping[str, Any]  # as in nodes.json
    interfaces: Mapping[str, bool]  # network interfaces: whether they are up
    adapters: Mapping[str, str]  # InfiniBand: state, such as "ACTIVE"
    memlock_kib: int | None  # None: unlimited
    nofile: int | None
    shm: Folder | None
    temporary: Folder
    cache: Folder
    address: str | None  # that this host's name resolves to
    programs: Mapping[str, bool] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)  # those that the checks read


def gather(environ: Mapping[str, str]) -> Facts:
    """Look at this machine. Starts nothing but nvidia-smi."""
    environment = describe_environment()
    cuda = environment["cuda"]
    return Facts(
        python=sys.version_info[:2],
        packages=environment["packages"],
        requirements=tuple(importlib.metadata.requires(DISTRIBUTION) or ()),
        locked=_locked(_LOCKS / f"{'cuda' if cuda else 'cpu'}.txt"),
        cuda=cuda,
        node=describe_node(),
        interfaces={name: stats.isup for name, stats in psutil.net_if_stats().items()},
        adapters=_adapters(_INFINIBAND),
        memlock_kib=_limit(resource.RLIMIT_MEMLOCK, 1024),
        nofile=_limit(resource.RLIMIT_NOFILE, 1),
        shm=folder_of(_SHM) if _SHM.is_dir() else None,
        temporary=folder_of(Path(environ.get("TMPDIR") or "/tmp")),  # noqa: S108 - where libraries write
        cache=folder_of(store_home()),
        address=_address(),
        programs={name: shutil.which(name) is not None for name in ("nvidia-smi", "sbatch")},
        variables={name: environ[name] for name in VARIABLES if name in environ},
    )


VARIABLES = (
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "HF_HOME", "HF_HUB_OFFLINE",
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip


def folder_of(path: Path) -> Folder:
    """Whether it can be written, or made, and what is free there."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return Folder(str(path), os.access(existing, os.W_OK | os.X_OK), shutil.disk_usage(existing).free / 2**30)


def _locked(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = [line.partition(" ")[0] for line in path.read_text(encoding="utf-8").splitlines() if "==" in line]
    return dict(line.split("==", 1) for line in lines if line and not line.startswith(("#", "--")))


def _adapters(folder: Path) -> dict[str, str]:
    found = {}
    for adapter in sorted(folder.iterdir()) if folder.is_dir() else []:
        states = [path.read_text(encoding="utf-8").strip() for path in sorted(adapter.glob("ports/*/state"))]
        # The kernel writes a number before the word.
        found[adapter.name] = next((state.partition(": ")[2] for state in states), "unknown")
    return found


def _limit(which: int, unit: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft // unit


def _address() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
