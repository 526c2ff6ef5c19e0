"""One machine in the place of a cluster: the same scripts, as processes, as many at a time as there are GPUs for."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_pytest_plugin.case import Case
from slurm_pytest_plugin.local_job import STATE
from slurm_pytest_plugin.place import LOG, Executor
from slurm_pytest_plugin.request import ClusterError, Request
from slurm_pytest_plugin.states import Seen

HOST = "here"
_STOP_SECONDS = 30.0
_CLEAN = ("HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER")


@dataclass
class _Job:
    request: Request
    gpus: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    state: str = "PENDING"
    elapsed: float = 0.0


class LocalCluster:
    """Jobs start in the order of submission. A job without GPUs counts as the whole machine: one runs at a time."""

    executor: Executor = "local"

    def __init__(self, gpus: Sequence[str]) -> None:
        """`gpus` are the names that CUDA_VISIBLE_DEVICES may hold."""
        self.gpus = tuple(gpus)
        self._jobs: dict[str, _Job] = {}
        self._free = list(gpus)

    def submit(self, request: Request) -> str:
        missing = what_is_missing(request.case, self.gpus)
        if missing is not None:
            raise ClusterError(missing)
        job_id = f"local-{len(self._jobs) + 1}"
        self._jobs[job_id] = _Job(request)
        self._start()
        return job_id

    def cancel(self, job_ids: Sequence[str]) -> None:
        chosen = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
        for job in chosen:
            if job.process is None and job.state == "PENDING":
                job.state = "CANCELLED"
            elif job.process is not None:
                job.process.terminate()
        for job in chosen:
            if job.process is not None:
                job.process.wait(_STOP_SECONDS)
        self._collect()

    def states(self, job_ids: Sequence[str]) -> dict[str, Seen]:
        self._collect()
        self._start()
        return {job_id: self._seen(self._jobs[job_id]) for job_id in job_ids if job_id in self._jobs}

    def find(self, tag: str) -> str | None:  # noqa: ARG002 - jobs of another process end with it
        return None

    def faulty(self, nodes: str) -> tuple[str, ...]:  # noqa: ARG002 - there is one node
        return ()

    def expand(self, nodes: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def answers(self) -> bool:
        return True

    def _seen(self, job: _Job) -> Seen:
        elapsed = time.monotonic() - job.began if job.state == "RUNNING" else job.elapsed
        reason = "Resources" if job.state == "PENDING" else ""
        return Seen(job.state, reason, "" if job.state == "PENDING" else HOST, elapsed)

    def _collect(self) -> None:
        for job in self._jobs.values():
            if job.process is not None and job.process.poll() is not None:
                job.process = None
                self._free += job.gpus
                end = _read_end(job.request.script.parent / STATE)
                job.state, job.elapsed = end.get("state", "FAILED"), float(end.get("elapsed", 0.0))

    def _start(self) -> None:
        for job in self._jobs.values():
            if job.state != "PENDING":
                continue
            running = [other for other in self._jobs.values() if other.process is not None]
            wanted = job.request.case.gpus
            if wanted > len(self._free) or (running and (wanted == 0 or any(not other.gpus for other in running))):
                return
            job.gpus = tuple(self._free[:wanted])
            del self._free[:wanted]
            self._launch(job)

    def _launch(self, job: _Job) -> None:
        case, script = job.request.case, job.request.script
        (script.parent / STATE).unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "slurm_pytest_plugin.local_job", os.getpid(), case.limit_seconds,
            case.notice_seconds, script, script.parent / LOG,
        ]  # fmt: skip
        job.process = subprocess.Popen(  # noqa: S603 - no shell
            [str(part) for part in command], stdin=subprocess.DEVNULL, start_new_session=True,
            env=self._environment(job),
        )  # fmt: skip
        job.began, job.state = time.monotonic(), "RUNNING"

    def _environment(self, job: _Job) -> dict[str, str]:
        request = job.request
        if request.case.clean_environment:
            environment = {name: os.environ[name] for name in _CLEAN if name in os.environ}
        else:
            environment = dict(os.environ)
        # The supervisor is found wherever this package was found.
        package = str(Path(__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(job.gpus)
        environment["SLURM_RESTART_COUNT"] = str(request.restarts)
        return environment


def what_is_missing(case: Case, gpus: Sequence[str]) -> str | None:
    """Why this machine cannot run the case; None where it can."""
    if case.runs_here is False or (case.runs_here is None and case.nodes > 1):
        return f"{case.id} needs {case.nodes} nodes of a Slurm cluster ({case.gpus} GPUs)"
    if case.gpus > len(gpus):
        return f"{case.id} needs {case.gpus} GPUs, and this machine has {len(gpus)}"
    return None


def visible_gpus() -> list[str]:
    """The GPUs of this machine that this process may use."""
    limited = os.environ.get("CUDA_VISIBLE_DEVICES")
    if limited is not None:
        return [name for name in limited.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S607
    return [str(index) for index, line in enumerate(line for line in done.stdout.splitlines() if "GPU" in line)]


def _read_end(path: Path) -> Mapping[str, str]:
    try:
        value: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value
