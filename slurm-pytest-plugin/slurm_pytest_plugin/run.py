"""The jobs of one run: submitted all at once, asked for all at once, ended one by one."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_pytest_plugin.attempts import Ended as EndedAttempt
from slurm_pytest_plugin.attempts import read_attempts, write_attempts
from slurm_pytest_plugin.case import Case, More
from slurm_pytest_plugin.decide import Ended, GiveUp, Limits, Restart, Retry, after, watch
from slurm_pytest_plugin.failure import classify
from slurm_pytest_plugin.failure_names import FailureClass
from slurm_pytest_plugin.hours import next_hours
from slurm_pytest_plugin.job import Job
from slurm_pytest_plugin.ledger import Entry, Ledger, LedgerError
from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.place import SCRIPT, Place
from slurm_pytest_plugin.request import Cluster, ClusterError, Request
from slurm_pytest_plugin.result import Result, ResultError, read_result
from slurm_pytest_plugin.script import render
from slurm_pytest_plugin.states import Seen

__all__ = ["Clock", "Limits", "Run", "Site", "write_script"]


@dataclass(frozen=True)
class Clock:
    """Time, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Site:
    """What the command line says of every job."""

    account: str | None = None
    partition: str | None = None
    max_jobs: int | None = None  # in the queue at a time
    max_gpu_hours: float | None = None  # of all jobs of the run, beyond which nothing is tried again or run once more


class Run:
    """All jobs of a run id. Nothing happens but inside `start`, `wait` and `cancel`."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        cases: Iterable[Case],
        *,
        limits: Limits | None = None,
        site: Site | None = None,
        say: Callable[[str], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        """`folder` is the run's own, and its name is the run id; `say` gets a line on every change."""
        self.cluster = cluster
        self.folder = folder
        self.limits = limits or Limits()
        self.jobs = {case.id: Job(case, folder / case.id) for case in cases}
        self._site = site or Site()
        self._say = say
        self._clock = clock or Clock()
        self._ledger = Ledger(folder)
        self._last_answer = self._clock.now()
        self._is_silent = False

    def start(self) -> None:
        """Find the jobs that this run has already, and submit the others.

        Raises LedgerError where the run was begun on another executor.
        """
        self._last_answer = self._clock.now()
        for case_id, entries in self._ledger.read().items():
            if case_id in self.jobs:
                self._adopt(self.jobs[case_id], entries)
        self._submit_waiting()

    def wait(self, case_id: str, on_tick: Callable[[], None] = lambda: None) -> Outcome:
        """The outcome of a case; meanwhile all others are looked after as well."""
        job = self.jobs[case_id]
        while job.outcome is None:
            self.tick()
            on_tick()
            if job.outcome is None:
                self._clock.pause(self.limits.poll)
        return job.outcome

    def tick(self) -> None:
        """Ask once for all jobs, and do what follows."""
        self._submit_waiting()
        waiting = [(job, job.job_id) for job in self._open() if job.job_id is not None]
        if not waiting:
            self._check_silence()
            return
        try:
            states = self.cluster.states([job_id for _, job_id in waiting])
        except ClusterError as error:
            self._silent(str(error))
            return
        self._answered()
        for job, job_id in waiting:
            self._look(job, states.get(job_id))

    def cancel(self) -> list[str]:
        """End what this run has submitted and is not at its end, and nothing else; the ids. Raises ClusterError."""
        mine = [job.job_id for job in self._open() if job.job_id is not None]
        self.cluster.cancel(mine)
        for job in self._open():
            if job.job_id is not None:
                self._end(job, "unknown", "cancelled by this run")
        return mine

    def _open(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.outcome is None]

    def _adopt(self, job: Job, entries: list[Entry]) -> None:
        last = entries[-1]
        if last.executor != self.cluster.executor:
            raise LedgerError(
                f"{self.folder}: {last.case} was begun with --executor {last.executor}, not {self.cluster.executor}"
            )
        job.attempt, job.restarts, job.exclude = last.attempt, last.restarts, last.exclude
        ids = [entry.job_id for entry in entries if entry.job_id is not None]
        job.jobs = list(dict.fromkeys(ids))
        earlier = read_attempts(job.root, job.case.id, job.case.gpus)
        job.ended = [each for each in earlier if each.outcome.attempts < last.attempt]
        if job.ended:
            job.retries = sum(each.infra for each in job.ended)
            job.queued_before, job.ran_before = job.ended[-1].outcome.queued, job.ended[-1].outcome.ran
            job.why = "asked for by an earlier pytest"
        found = last.job_id or self.cluster.find(self._tag(job))
        if found is None:
            return
        if self.cluster.executor == "local" and _result_of(job.folder)[0] is None:
            return  # it ended with the process that had started it
        job.submitted(found, self._clock.now())
        self._note(job, "found again")

    def _submit_waiting(self) -> None:
        for job in self._open():
            under_way = sum(other.job_id is not None for other in self._open())
            if self._site.max_jobs is not None and under_way >= self._site.max_jobs:
                return
            if job.job_id is None and not self._submit(job):
                return

    def _submit(self, job: Job) -> bool:
        """Whether the cluster answered."""
        script = write_script(job.case, Place(job.folder, self.cluster.executor, job.attempt))
        entry = Entry(job.case.id, job.attempt, job.restarts, self.cluster.executor, job.excluded)
        self._ledger.write(entry)
        request = Request(
            job.case, script, self._tag(job), job.excluded, self._site.account, self._site.partition, job.restarts
        )
        try:
            job_id = self.cluster.submit(request)
        except ClusterError as error:
            if not self.cluster.answers():
                self._silent(str(error))
                return False
            if _for_want_of_nodes(str(error)) and self._admits_more_nodes(job, str(error)):
                return self._submit(job)
            self._end(job, "queue", str(error))
            return True
        self._answered()
        self._ledger.write(Entry(**{**vars(entry), "job_id": job_id}))
        job.submitted(job_id, self._clock.now())
        self._note(job, f"submitted: {job.folder}")
        return True

    def _look(self, job: Job, seen: Seen | None) -> None:
        before = job.seen
        spent = job.observe(seen, self._clock.now())
        if seen is not None and (before is None or (before.state, before.nodes) != (seen.state, seen.nodes)):
            self._note(job, " ".join(part for part in (seen.state, seen.reason, seen.nodes) if part))
        decision = watch(seen, spent, job.case, self.limits)
        if isinstance(decision, GiveUp):
            assert job.job_id is not None
            try:
                self.cluster.cancel([job.job_id])
            except ClusterError as error:
                self._silent(str(error))  # at the next tick it is tried again
                return
            self._note(job, f"cancelled: {decision.why}")
            if seen is not None and seen.hopeless and self._admits_more_nodes(job, decision.why):
                job.job_id = None
            else:
                self._end(job, decision.failure, decision.why)
        elif isinstance(decision, Ended):
            self._after_end(job, decision.seen)

    def _admits_more_nodes(self, job: Job, why: str) -> bool:
        """Whether a job that was refused stayed away from nodes, which it now takes: first those of earlier runs."""
        if not job.excluded:
            return False
        if job.avoid:
            job.avoid = ()
        else:
            job.exclude = ()
        job.remarks.append(f"attempt {job.attempt} on the same nodes, since there are no others")
        self._note(job, f"there are no other nodes: the same again ({why})")
        return True

    def _after_end(self, job: Job, seen: Seen | None) -> None:
        result, problem = _result_of(job.folder)
        state = None if seen is None else seen.state
        failure = classify(state, result, job.case.requeue_exit_code)
        following = after(job.case, failure, result, retries=job.retries, restarts=job.restarts)
        if isinstance(following, Restart):
            job.restarts += 1
            self._note(job, f"saved, and asks to be started again (restart {job.restarts} of {job.case.max_restarts})")
            job.job_id = None
        elif isinstance(following, Retry):
            at_fault = self._at_fault(seen, result)
            self._again(job, failure, problem, More(f"infra ({state})", at_fault, elsewhere=False, infra=True))
        else:
            asked = None
            if job.case.more is not None:
                asked = job.case.more((*job.runs, self._outcome(job, failure, problem)))
            if asked is None:
                self._end(job, failure, problem)
            else:
                self._again(job, failure, problem, asked, counts=True)

    def _again(
        self, job: Job, failure: FailureClass | None, problem: str, wanted: More, *, counts: bool = False
    ) -> None:
        """Another attempt, where that is within all limits; otherwise the case ends here.

        `counts`: what has ended is one of the case's runs, not a job that came to nothing.
        """
        against = self._why_not(job, wanted)
        if against is not None:
            job.remarks.append(f"{wanted.why}: not run again, since {against}")
            self._end(job, failure, problem)
            return
        job.ended.append(EndedAttempt(self._outcome(job, failure, problem), counts=counts, infra=wanted.infra))
        write_attempts(job.root, job.ended, final=False)
        job.exclude = tuple(dict.fromkeys((*job.exclude, *wanted.exclude)))
        if wanted.elsewhere:
            job.avoid = tuple(dict.fromkeys((*job.avoid, *self._expanded(job.seen))))
        job.attempt += 1
        job.restarts, job.why, job.job_id = 0, wanted.why, None
        job.retries += wanted.infra
        self._note(job, f"{wanted.why}: again, without {', '.join(job.excluded) or 'excluding any node'}")

    def _why_not(self, job: Job, wanted: More) -> str | None:
        """What forbids one more attempt."""
        if wanted.infra and job.retries >= job.case.infra_retries:
            return f"the machine was at fault {job.retries + 1} times"
        runs = len(job.runs) + 1 - sum(each.counts and each.infra for each in job.ended)
        if not wanted.infra and runs >= job.case.max_runs:
            return f"there were {runs} runs"
        limit = self._site.max_gpu_hours
        spent = sum(each.case.gpus * each.ran for each in self.jobs.values()) / 3600
        # The others may go on to their limits, whatever is decided here.
        spent += sum(each.case.gpus * _left(each) for each in self._open() if each is not job) / 3600
        needed = next_hours(job.case, job.seen.elapsed if job.seen is not None else 0.0)
        if limit is not None and spent + needed > limit:
            return f"that takes {needed:.2f} GPU-hours, and {max(0.0, limit - spent):.2f} are left of {limit:.2f}"
        return None

    def _expanded(self, seen: Seen | None) -> tuple[str, ...]:
        if seen is None or not seen.nodes:
            return ()
        try:
            return self.cluster.expand(seen.nodes)
        except ClusterError:
            return ()

    def _at_fault(self, seen: Seen | None, result: Result | None) -> tuple[str, ...]:
        """What the job itself blames; else what the cluster does; else all its nodes."""
        if result is not None and result.exclude:
            return result.exclude
        if seen is None or not seen.nodes:
            return ()
        try:
            return self.cluster.faulty(seen.nodes) or self.cluster.expand(seen.nodes)
        except ClusterError:
            return ()

    def _end(self, job: Job, failure: FailureClass | None, message: str) -> None:
        job.outcome = self._outcome(job, failure, message)
        if job.root.is_dir():  # a script was written
            write_attempts(job.root, [*job.ended, EndedAttempt(job.outcome)], final=True)
        self._say(job.outcome.sentence)

    def _outcome(self, job: Job, failure: FailureClass | None, message: str) -> Outcome:
        result, _ = _result_of(job.folder)
        seen = job.seen
        return Outcome(
            case=job.case.id, executor=self.cluster.executor, state=None if seen is None else seen.state,
            result=result, failure=failure, folder=job.folder,
            message="; ".join(part for part in (message, *job.remarks) if part), jobs=tuple(job.jobs),
            nodes="" if seen is None else seen.nodes, excluded=job.excluded, attempts=job.attempt,
            restarts=job.restarts, queued=job.queued, ran=job.ran, gpus=job.case.gpus, why=job.why,
            earlier=tuple(job.runs),
        )  # fmt: skip

    def _silent(self, error: str) -> None:
        if not self._is_silent:
            self._say(f"{error}; asking again for {self.limits.silence:.0f} s")
        self._is_silent = True
        self._check_silence()

    def _answered(self) -> None:
        self._last_answer, self._is_silent = self._clock.now(), False

    def _check_silence(self) -> None:
        silence = self._clock.now() - self._last_answer
        if silence <= self.limits.silence:
            return
        for job in self._open():
            # Its job goes on, and the same run id finds it again.
            self._end(job, "unknown", f"the scheduler has not answered for {silence:.0f} s")

    def _tag(self, job: Job) -> str:
        return f"{self.folder.name}/{job.case.id}/{job.attempt}.{job.restarts}"

    def _note(self, job: Job, text: str) -> None:
        job.note = text
        self._say(f"{job.case.id}: {f'job {job.job_id}: ' if job.job_id else ''}{text}")


def _left(job: Job) -> float:
    """Seconds that a job may still run."""
    if job.seen is None:
        return job.case.limit_seconds
    return 0.0 if job.seen.final else max(0.0, job.case.limit_seconds - job.seen.elapsed)


def _for_want_of_nodes(refusal: str) -> bool:
    """Whether Slurm refuses a job for its nodes ("Requested node configuration is not available", ...)."""
    return re.search(r"\bnodes?\b", refusal, re.IGNORECASE) is not None


def write_script(case: Case, place: Place) -> Path:
    """Write the files of a job into its folder; the path of the script. Raises CaseError."""
    files = render(case, place)
    place.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = place.folder / name
        path.touch(mode=0o700)
        path.write_text(text, encoding="utf-8")
    return place.folder / SCRIPT


def _result_of(folder: Path) -> tuple[Result | None, str]:
    """The result, and what is wrong with the file that cannot be read."""
    try:
        return read_result(folder), ""
    except ResultError as error:
        return None, str(error)
