"""One case as one job: submit, wait with deadlines, judge."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo.errors import MatrixError, SlurmError
from grpo.matrix.judge import JobOutcome, Verdict
from grpo.matrix.load import Matrix
from grpo.matrix.run import judge_directory, read_result
from grpo.matrix.schema import Case
from grpo.matrix.schema.types import seconds_of
from grpo.matrix.slurm.client import HOPELESS, JobState
from grpo.matrix.slurm.script import RUN, render_script

POLL_SECONDS = 1.0
GRACE_SECONDS = 120.0  # beyond the job's own time limit, for the scheduler to end it
SILENCE_SECONDS = 120.0  # that the scheduler may be out of reach
SCRIPT = "job.sh"


class Cluster(Protocol):
    """What the runner needs of Slurm."""

    def submit(self, script: Path) -> str: ...
    def cancel(self, job_id: str) -> None: ...
    def state(self, job_id: str) -> JobState: ...


@dataclass(frozen=True)
class Waiting:
    """How long to wait; the clock and the pause are parameters so that nothing has to wait in tests."""

    queue_seconds: float
    run_seconds: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def prepare_job(
    matrix: Matrix, case: Case, partition: str, folder: Path, *, environ: Mapping[str, str], working_directory: Path
) -> Path:
    """Make the job's folder and write its script. Raises MatrixError where the folder holds something already."""
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise MatrixError(f"{folder} is not empty: name another folder for this job")
    script = render_script(
        case, partition, matrix.partition(partition), folder, working_directory=working_directory, environ=environ
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCRIPT
    path.write_text(script, encoding="utf-8")
    return path


def run_job(
    cluster: Cluster, script: Path, waiting: Waiting, *, matrix: Matrix, case: Case, partition: str
) -> tuple[Verdict, JobState]:
    """Submit the script, wait for its end, and judge what it left in its folder."""
    job_id = cluster.submit(script)
    waiting.say(f"job {job_id} ({case.id} on {partition}): {script.parent}")
    try:
        end = wait_for(cluster, job_id, waiting)
    except BaseException:
        try:
            cluster.cancel(job_id)
        except SlurmError as error:
            waiting.say(f"job {job_id} may still be there: {error}")
        raise
    result = read_result(script.parent)
    outcome = JobOutcome(end.state)
    if result is not None:
        outcome = JobOutcome(end.state, result.exit_code, result.stage, result.stopped_by)
    return judge_directory(matrix, case, partition, script.parent / RUN, outcome), end


def wait_for(cluster: Cluster, job_id: str, waiting: Waiting) -> JobState:
    """The state in which the job ended; PENDING where it never started, and was cancelled for that."""
    began = last_answer = waiting.clock()
    started: float | None = None
    shown = None
    while True:
        now = waiting.clock()
        try:
            seen = cluster.state(job_id)
            last_answer = now
        except SlurmError as error:
            if now - last_answer > SILENCE_SECONDS:
                raise
            waiting.say(f"job {job_id}: {error}; asking again")
            waiting.pause(POLL_SECONDS)
            continue
        if (seen.state, seen.nodes) != shown:
            shown = (seen.state, seen.nodes)
            waiting.say(f"job {job_id}: {' '.join(part for part in (seen.state, seen.nodes) if part)}")
        if seen.final:
            return seen
        if seen.state == "PENDING":
            started = None
            if seen.reason in HOPELESS or now - began > waiting.queue_seconds:
                waiting.say(f"job {job_id} is cancelled: it waits for {seen.reason or 'nothing known'}")
                cluster.cancel(job_id)
                return seen
        else:
            started = now if started is None else started
            if now - started > waiting.run_seconds:
                raise SlurmError(f"job {job_id} is {seen.state} {now - started:.0f} s after its start: cancelled")
        waiting.pause(POLL_SECONDS)


def run_seconds(case: Case) -> float:
    """How long a job of the case may run before the scheduler must have ended it."""
    return seconds_of(case.time_limit) + GRACE_SECONDS
