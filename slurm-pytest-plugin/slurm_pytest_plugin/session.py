"""From the collected tests to the jobs of a run, and back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from slurm_pytest_plugin.attempts import read_attempts
from slurm_pytest_plugin.case import Case
from slurm_pytest_plugin.failure import classify
from slurm_pytest_plugin.ledger import locked
from slurm_pytest_plugin.local import LocalCluster, visible_gpus, what_is_missing
from slurm_pytest_plugin.options import Settings
from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.place import Executor, Place
from slurm_pytest_plugin.request import Cluster, ClusterError
from slurm_pytest_plugin.result import ResultError, read_result
from slurm_pytest_plugin.run import Run, write_script
from slurm_pytest_plugin.slurm import SlurmClient, slurm_is_here
from slurm_pytest_plugin.table import dry_table, run_table


class CaseSession:
    """What one pytest does with the selected cases."""

    def __init__(
        self,
        settings: Settings,
        console: Console,
        say: Callable[[str], None],
        uncaptured: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`say` prints a line, and what is printed to `console` within `uncaptured` is seen as well."""
        self.settings = settings
        self._print = say
        self._live: Live | None = None
        self.run: Run | None = None
        self._console = console
        self._uncaptured = uncaptured
        self._held = ExitStack()

    @property
    def run_id(self) -> str:
        return self.settings.run_folder.name

    def begin(self, cases: Sequence[Case]) -> None:
        """Submit all of them, or what the options say instead. Raises what makes a run impossible."""
        settings = self.settings
        if not cases or settings.from_run is not None:
            return
        if settings.dry_run:
            self._dry_run(cases)
            return
        cluster = choose_cluster(settings.executor, cases)
        settings.run_folder.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(locked(settings.run_folder))
        self.say(f"run {self.run_id} in {settings.run_folder}; --run-id {self.run_id} waits for it again")
        self.run = Run(cluster, settings.run_folder, cases, limits=settings.limits, site=settings.site, say=self.say)
        self.run.start()

    def outcome(self, case: Case) -> Outcome:
        """Wait for a case."""
        if self.settings.from_run is not None:
            return outcome_from(self.settings.from_run, case)
        assert self.run is not None
        with self._shown() as draw:
            return self.run.wait(case.id, draw)

    def end(self) -> None:
        """Cancel what nobody waits for any more."""
        try:
            if self.run is not None:
                cancelled = self.run.cancel()
                if cancelled:
                    self.say(f"cancelled: {' '.join(cancelled)}")
        except ClusterError as error:
            self.say(f"jobs of this run may still be there ({error}): --run-id {self.run_id} finds them")
        finally:
            self._held.close()

    def say(self, text: str) -> None:
        if self._live is None:
            self._print(text)
        else:  # above the table
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _shown(self) -> Iterator[Callable[[], None]]:
        """The live table, on a terminal."""
        run = self.run
        assert run is not None
        if not self._console.is_terminal:
            yield lambda: None
            return
        with self._uncaptured(), Live(console=self._console, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield lambda: live.update(run_table(self.run_id, run.jobs.values()), refresh=True)
            finally:
                self._live = None

    def _dry_run(self, cases: Sequence[Case]) -> None:
        executor: Executor = "local" if self.settings.executor == "local" else "slurm"
        scripts = {
            case.id: write_script(case, Place(self.settings.run_folder / case.id / "attempt-1", executor, 1))
            for case in cases
        }
        with self._uncaptured():
            self._console.print(dry_table(cases, scripts))


def choose_cluster(executor: str | None, cases: Sequence[Case]) -> Cluster:
    """Slurm where it is there, or this machine where it can run all cases. Raises UsageError with what is missing."""
    absent = "" if executor == "local" else _why_no_slurm()
    if executor == "slurm" and absent:
        raise pytest.UsageError(f"--executor slurm: {absent}")
    if executor != "local" and not absent:
        return SlurmClient()
    gpus = visible_gpus()
    missing = [problem for problem in (what_is_missing(case, gpus) for case in cases) if problem is not None]
    if missing:
        where = f"{absent}, and " if absent else ""
        raise pytest.UsageError(f"{where}{'; '.join(missing)}. --dry-run shows what would be submitted")
    return LocalCluster(gpus)


def _why_no_slurm() -> str:
    if not slurm_is_here():
        return "there is no Slurm here (no sbatch)"
    silence = SlurmClient().silence()
    return f"no Slurm answers here ({' '.join(silence.split())})" if silence else ""


def outcome_from(folder: Path, case: Case) -> Outcome:
    """What an earlier run left. Raises UsageError where there is nothing of the case."""
    attempts = sorted((folder / case.id).glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    job_folder = (attempts[-1] if attempts else folder).resolve()
    if not job_folder.is_dir():
        raise pytest.UsageError(f"--from-run {folder}: there is no such folder")
    try:
        result, problem = read_result(job_folder), ""
    except ResultError as error:
        result, problem = None, str(error)
    # A folder without a result may be of a run that was no job: whoever judges it decides.
    failure = "unknown" if problem else None if result is None else classify(None, result, case.requeue_exit_code)
    # While the last attempt runs there is no line of it yet.
    before = len(attempts) and int(attempts[-1].name.rpartition("-")[2])
    earlier = [
        each.outcome
        for each in read_attempts(folder / case.id, case.id, case.gpus)
        if each.counts and each.outcome.attempts < before
    ]
    return Outcome(
        case.id, None, None, result, failure, job_folder, message=problem, gpus=case.gpus, earlier=tuple(earlier)
    )
