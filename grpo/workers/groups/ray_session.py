"""Ray for this process: one of its own on loopback, or an existing cluster."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from grpo.errors import WorkerError
from grpo.workers.groups.head import CLUSTER_SECONDS, OWN_SECONDS, HeadWatch
from grpo.workers.groups.keeper import start_keeper, stop_keeper

STOP_SECONDS = 20.0
CONNECT_SECONDS = 10.0
# What a worker process sees of the environment: names and beginnings of names. Everything else may hold secrets.
_PASSED_ON = (
    "CUDA_", "GRPO_", "HF_HOME", "HF_HUB_OFFLINE", "HOME", "LANG", "LC_", "LD_", "LOGNAME", "NCCL_", "NVIDIA_", "OMP_",
    "PATH", "PYTHON", "RAY_", "SSL_CERT_", "TMPDIR", "TORCH", "TZ", "USER", "VIRTUAL_ENV", "VLLM_", "XDG_CACHE_HOME",
)  # fmt: skip
# Of these, what also holds on another machine: an existing cluster has its own paths and users.
_SENT = ("GRPO_", "HF_HOME", "HF_HUB_OFFLINE", "NCCL_", "OMP_", "TORCH", "VLLM_")
_TAIL_LINES = 40
_RAY_LINES = (":job_id:", ":actor_name:", "Extension modules:")
_LONGEST_FOLDER = 40  # characters: Ray's sockets lie 60 below it, and the path of a socket has at most 107


@dataclass(frozen=True)
class Node:
    """A living node of the cluster; `total` and `free` by resource (`CPU`, `GPU`)."""

    node_id: str
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]


class RaySession:
    """Holds Ray until `close`. In a process that has Ray already, it is used as it is and not ended.

    A Ray of its own listens on loopback alone, has a folder of its own for sockets and logs, which goes with it,
    chooses free ports, and ends with this process even if that is killed: two runs on one machine do not meet.
    """

    def __init__(self, *, address: str | None = None, cpus: int = 1, gpus: int = 0) -> None:
        """Start or join.

        Args:
            address: `host:port` of an existing cluster, or `auto`; None starts Ray on this machine.
            cpus: ranks and engines that will run at a time in a Ray of its own; they share the machine's cores.
            gpus: GPUs of a Ray of its own.

        Raises:
            WorkerError: Ray is not installed, or no cluster answers at `address`.
        """
        if importlib.util.find_spec("ray") is None:
            raise WorkerError(
                "cluster.launcher=ray, but Ray is not installed: pip install 'grpo-matrix[vllm]' (GPU) or "
                "'grpo-matrix[cpu]', or set cluster.launcher=in_process"
            )
        import ray

        self._holds = not ray.is_initialized()
        self._folder: Path | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._head: HeadWatch | None = None
        self.is_local = address is None
        if not self._holds:
            self._watch_head()
            return
        if address is None:
            self._folder = _session_folder()
            with reduced_environment():
                self._keeper = start_keeper(self._folder)
                try:
                    _start(self._folder, cpus, gpus)
                except BaseException:
                    self.close()
                    raise
        else:
            _join(address)
        self._watch_head()

    @property
    def lost(self) -> str | None:
        """What is wrong with Ray's head, once that is gone: then nothing can be asked of Ray any more."""
        return None if self._head is None else self._head.lost

    @property
    def environment(self) -> dict[str, str]:
        """What workers on an existing cluster are sent of this process's environment; a local Ray inherits more."""
        return {} if self.is_local else {name: text for name, text in os.environ.items() if name.startswith(_SENT)}

    def nodes(self) -> list[Node]:
        """The living nodes, in the order of their addresses."""
        import ray
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        nodes = [
            Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"], free.get(each["NodeID"], {}))
            for each in ray.nodes()
            if each["Alive"]
        ]
        return sorted(nodes, key=lambda node: (node.address, node.node_id))

    def log_folder(self) -> Path | None:
        """Where the workers of this machine write what they print."""
        import ray

        node = ray._private.worker._global_node  # noqa: SLF001
        return None if node is None else Path(node.get_logs_dir_path())

    def last_words(self, pid: int) -> str:
        """The end of what a worker wrote to its standard error; empty where that is on another machine."""
        folder = self.log_folder()
        files = [] if folder is None else folder.glob(f"worker-*-{pid}.err")
        return "".join(last_lines(file.read_text(errors="replace")) for file in files)

    def close(self) -> None:
        """Leave the cluster, or end a Ray of its own with all its processes; more than once does no harm."""
        import ray

        if self._head is not None:
            self._head.stop()
        if not self._holds:
            return
        self._holds = False
        ray.shutdown()
        if self._keeper is not None:
            stop_keeper(self._keeper)

    def _watch_head(self) -> None:
        import ray

        address = ray.get_runtime_context().gcs_address
        self._head = HeadWatch(address, OWN_SECONDS if self.is_local else CLUSTER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def last_lines(printed: str) -> str:
    """The last lines that a worker printed, without those that Ray adds."""
    lines = [line for line in printed.splitlines() if not line.startswith(_RAY_LINES)]
    return "\n".join(lines[-_TAIL_LINES:])


def _start(folder: Path, cpus: int, gpus: int) -> None:
    """In an environment that is put back afterwards."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's 15 is for the sake of its own servers: ranks would hardly run on cores that have anything else to do.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with _loopback(), _deaf_children():
        ray.init(
            address="local", num_cpus=cpus, num_gpus=gpus, include_dashboard=False, log_to_driver=False,
            configure_logging=False, _node_ip_address="127.0.0.1", _temp_dir=str(folder),
        )  # fmt: skip


def _join(address: str) -> None:
    import ray

    host, _, port = address.rpartition(":")
    if address != "auto":
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            raise WorkerError(
                f"cluster.ray_address={address}: no Ray cluster answers there ({error}); host:port of one that runs, "
                "'auto', or null to start Ray on this machine"
            ) from error
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise WorkerError(f"cluster.ray_address={address}: {error}") from error


def _session_folder() -> Path:
    """Short, since it is the beginning of the paths of sockets."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="grpo-ray-", dir=base if len(base) < _LONGEST_FOLDER - 20 else "/tmp"))  # noqa: S108


@contextmanager
def _loopback() -> Iterator[None]:
    """On Linux Ray replaces the loopback address by one that others can reach, and then listens on all interfaces.

    It does so unless clusters are switched off, as they are on other systems; there is no option for it.
    """
    from ray._private import ray_constants

    constants: Any = ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Have the processes that start meanwhile, and theirs, leave SIGUSR1 blocked.

    It asks a run to stop. Sent to all processes of a run, as some schedulers do, it would end those that save.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def reduced_environment() -> Iterator[None]:
    """Only what is in `_PASSED_ON`: processes that start meanwhile inherit no more."""
    before = dict(os.environ)
    for name in before:
        if not name.startswith(_PASSED_ON):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
