"""What the job script runs on each node: the checks before the trainer, and the node's part of a Ray cluster.

A program of its own (`python -m grpo.matrix.slurm.node`) that needs the standard library and `grpo.telemetry` alone.
All addresses of a node (Ray's, vLLM's; gloo and NCCL take the interface itself) are that of the partition's control
interface.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from grpo.matrix.slurm.address import AddressError, check_adapters, check_address, interface_address
from grpo.telemetry.environment import describe_node
from grpo.telemetry.journal import replace_json

NODES = "nodes"  # in the job's folder: NAME.json of each node, NAME.bad of one that is refused
RAY_ADDRESS = "ray-address"
LOGS = "logs"
HEAD_SECONDS = 120.0
STOP_SECONDS = 15.0
HURRY_SECONDS = 1.0
_PORTS = range(20000, 30000)
_CANDIDATES = 8
_LOG_BYTES = 1 << 20  # of each log, its end
_LOG_FILES = 200  # of each node
_LONGEST_SCRATCH = 44  # characters: Ray's sockets lie 60 below it, and the path of a socket has at most 107


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "check":
            return check(options)
        if options.command == "gather":
            return gather(options.job_dir)
        problem = ray(options)
    except AddressError as error:
        problem = str(error)
    if problem is None:
        return 0
    refuse(options, problem)
    return 1


def check(options: argparse.Namespace) -> int:
    """Write what the node is; 1 where it is not what the partition says."""
    folder = options.job_dir / NODES
    folder.mkdir(mode=0o700, exist_ok=True)
    problems = []
    described = {**describe_node(), "host": options.name}
    try:
        described["address"] = check_address(interface_address(options.interface))
        check_adapters(options.hcas)
    except AddressError as error:
        problems.append(str(error))
    if len(described["gpus"]) < options.gpus:
        problems.append(f"{len(described['gpus'])} GPUs of {options.gpus}")
    if len(str(options.scratch)) > _LONGEST_SCRATCH:
        problems.append(f"storage.scratch makes {options.scratch}, longer than {_LONGEST_SCRATCH} characters")
    if options.job_id and "SLURM_JOB_ID" in os.environ:
        remove_stale(options.scratch, options.job_id, options.name)
    replace_json(folder / f"{options.name}.json", described)
    (folder / f"{options.name}.bad").unlink(missing_ok=True)
    if problems:
        refuse(options, "; ".join(problems))
    return 1 if problems else 0


def refuse(options: argparse.Namespace, problem: str) -> None:
    """Have the job know that this node is at fault."""
    folder = options.job_dir / NODES
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{options.name}.bad").write_text(f"{problem}\n", encoding="utf-8")
    print(f"node {options.name}: {problem}", file=sys.stderr)  # noqa: T201 - the job's log


def remove_stale(scratch: Path, job_id: int, name: str) -> None:
    """What this user's earlier jobs left on this node because they were killed before they could remove it."""
    folders = {
        path: int(found[1])
        for path in scratch.parent.glob("grpo-*")
        if (found := re.fullmatch(rf"grpo-(\d+)-{re.escape(name)}(\.job)?", path.name))
    }
    old = {path for path, owner in folders.items() if owner != job_id and path.stat().st_uid == os.getuid()}
    if not old:
        return
    command = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%A"]
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            command, capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return  # who cannot ask which jobs there are leaves them alone
    alive = {int(word) for word in done.stdout.split()}
    for path in old:
        if folders[path] not in alive:
            shutil.rmtree(path, ignore_errors=True)


def gather(job_dir: Path) -> int:
    """Put what every node is into the run directory, whose trainer knows its own host alone."""
    import json

    run = job_dir / "run"
    nodes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((job_dir / NODES).glob("*.json"))]
    for node in nodes:
        node.pop("schema_version", None)
    if run.is_dir() and nodes:
        replace_json(run / "nodes.json", {"nodes": nodes})
    return 0


def ray(options: argparse.Namespace) -> str | None:
    """Be the head or a worker of the job's Ray until SIGUSR1, or SIGTERM from Slurm; then leave nothing behind.

    Gives what went wrong; None where it was told to stop.
    """
    stop = threading.Event()
    patience = [STOP_SECONDS]

    def hurry(*_: object) -> None:
        # SIGKILL follows in seconds, and the step's other processes have the signal too.
        patience[0] = HURRY_SECONDS
        stop.set()

    signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, hurry)
    signal.signal(signal.SIGINT, hurry)
    scratch: Path = options.scratch
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    process: subprocess.Popen[bytes] | None = None
    try:
        address = interface_address(options.interface)
        environment = _environment(scratch, address)
        if options.command == "head":
            process = _start_head(options, address, environment, stop)
        else:
            process = _start(options, [f"--address={options.address}"], address, environment)
        while process is not None and process.poll() is None and not stop.is_set():
            stop.wait(0.5)
        return None if stop.is_set() else f"Ray ended by itself: {LOGS}/{options.name}/ray-start.log says why"
    finally:
        if process is not None:
            _end(process, patience[0])
        keep_logs(scratch / "ray", options.job_dir / LOGS / options.name)
        _remove(scratch)


def _start_head(
    options: argparse.Namespace, address: str, environment: dict[str, str], stop: threading.Event
) -> subprocess.Popen[bytes] | None:
    """On the first port of the job's that is free and stays so."""
    ends = time.monotonic() + HEAD_SECONDS
    for port in candidates(options.job_id):
        if not port_is_free(address, port):
            continue
        process = _start(options, ["--head", f"--port={port}", "--include-dashboard=false"], address, environment)
        while process.poll() is None and not stop.is_set() and time.monotonic() < ends:
            if _is_healthy(f"{address}:{port}", environment):
                path = options.job_dir / RAY_ADDRESS
                temporary = path.with_suffix(".tmp")
                temporary.write_text(f"{address}:{port}\n", encoding="utf-8")
                temporary.replace(path)
                return process
            stop.wait(0.2)
        _end(process, STOP_SECONDS)
        if stop.is_set() or time.monotonic() >= ends:
            break
    raise AddressError(f"Ray's head did not start at {address} within {HEAD_SECONDS:.0f} s ({_CANDIDATES} ports tried)")


def candidates(job_id: int) -> list[int]:
    """Ports to try, in order: two jobs of a node begin at different ones."""
    return [_PORTS[(job_id * 7 + attempt * 1009) % len(_PORTS)] for attempt in range(_CANDIDATES)]


def port_is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _start(
    options: argparse.Namespace, role: Sequence[str], address: str, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", *role, f"--node-ip-address={address}",
        f"--num-cpus={options.cpus}", f"--num-gpus={options.gpus}", f"--temp-dir={options.scratch / 'ray'}",
        "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats", "--block",
    ]  # fmt: skip
    if options.object_store_bytes:
        command.append(f"--object-store-memory={options.object_store_bytes}")
    folder = options.job_dir / LOGS / options.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "ray-start.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - no shell
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _is_healthy(address: str, environment: dict[str, str]) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        done = subprocess.run(  # noqa: S603 - no shell
            [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _environment(scratch: Path, address: str) -> dict[str, str]:
    """Of Ray on this node, which its workers inherit."""
    (scratch / "tmp").mkdir(mode=0o700, exist_ok=True)
    return {
        "RAY_worker_niceness": "0",  # by itself 15: ranks would hardly run beside anything else; see `RaySession`
        **os.environ,
        "TMPDIR": str(scratch / "tmp"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "VLLM_HOST_IP": address,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ROTATION_MAX_BYTES": str(64 << 20),
        "RAY_ROTATION_BACKUP_COUNT": "1",
    }


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """`ray start --block` ends its processes on SIGTERM; what is left of its group after a while is killed."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _remove(folder: Path) -> None:
    """Also where a process that ends still writes into it."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def keep_logs(temporary: Path, target: Path) -> None:
    """The end of each log of Ray and its workers, one file a process."""
    for session in sorted(temporary.glob("session_2*")):
        logs = [path for path in sorted((session / "logs").glob("*")) if path.is_file() and path.stat().st_size]
        for path in logs[:_LOG_FILES]:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LOG_BYTES))
                (target / path.name).write_bytes(file.read(_LOG_BYTES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grpo.matrix.slurm.node")
    parser.add_argument("command", choices=("check", "head", "worker", "gather"))
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--job-id", type=int, default=0)
    parser.add_argument("--name", default=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    parser.add_argument("--scratch", type=Path, default=None, help="of the job; each node has its own folder in it")
    parser.add_argument("--interface", default=None)
    parser.add_argument("--hcas", type=lambda text: [name for name in text.split(",") if name], default=[])
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--object-store-bytes", type=int, default=0)
    parser.add_argument("--address", default=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
