"""The plugin: its options and hooks alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter
from rich.console import Console

from slurm_pytest_plugin import hooks
from slurm_pytest_plugin.case import Case, CaseError
from slurm_pytest_plugin.ledger import LedgerError
from slurm_pytest_plugin.options import add_options, settings_of
from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.place import LOG
from slurm_pytest_plugin.request import ClusterError
from slurm_pytest_plugin.selection import by_id, chosen, unknown
from slurm_pytest_plugin.session import CaseSession

FIXTURE = "slurm_case"
_SESSION = pytest.StashKey[CaseSession]()
_PROBLEM = pytest.StashKey[str]()
_KNOWN = pytest.StashKey[dict[str, Case]]()
_USAGE = (CaseError, ClusterError, LedgerError)


@dataclass(frozen=True)
class SlurmCase:
    """What a test gets: its case, and the way to wait for it."""

    case: Case
    _session: CaseSession
    _item: pytest.Item

    @property
    def id(self) -> str:
        return self.case.id

    def wait(self) -> Outcome:
        """Wait until the case has its outcome, after all its attempts; it is told to JUnit as well."""
        outcome = self._session.outcome(self.case)
        self._item.user_properties += [("slurm_run_id", self._session.run_id), *outcome.properties().items()]
        return outcome

    def check(self) -> Outcome:
        """Wait, and fail the test with the end of the job's log where the case failed."""
        outcome = self.wait()
        if not outcome.passed:
            pytest.fail(f"{outcome.sentence}\n{outcome.folder}/{LOG} ends:\n{outcome.tail()}", pytrace=False)
        return outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KNOWN] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE not in metafunc.fixturenames:
        return
    if getattr(metafunc.config, "workerinput", None) is not None:  # so xdist documents that its workers are told apart
        raise pytest.UsageError("cases of Slurm are waited for by one process: run them without -n")
    config = metafunc.config
    try:
        given = metafunc.definition.ihook.pytest_slurm_cases(config=config)
        cases = by_id(case for several in given for case in several)
    except (CaseError, pytest.UsageError) as error:
        # Here it would be shown as a traceback; it is raised when everything is collected.
        config.stash[_PROBLEM] = str(error)
        cases = {}
    config.stash[_KNOWN].update(cases)
    selected = chosen(cases, config.getoption("slurm_case"))
    metafunc.parametrize(FIXTURE, selected, ids=[case.id for case in selected], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _PROBLEM in config.stash:
        raise pytest.UsageError(config.stash[_PROBLEM])
    message = unknown(config.getoption("slurm_case"), _known(config))
    if message is not None:
        raise pytest.UsageError(message)
    # pytest makes one test that is skipped of a parametrisation that is empty: here nothing was selected.
    idle = [item for item in items if _asks(item) and _case_of(item) is None]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Submit what was selected, after collection and before any test runs; a dry run ends here.

    (`pytest_collection_finish` is too early: it is called for `--fixtures`, and where the collection broke off.)
    """
    config = session.config
    stopped = session.testsfailed and not config.option.continue_on_collection_errors
    if config.option.collectonly or stopped:
        return None
    found = [case for case in map(_case_of, session.items) if case is not None]
    cases = list({case.id: case for case in found}.values())
    if not cases:
        return None
    config.stash[_SESSION] = CaseSession(
        settings_of(config), _console(config), partial(_say, config), partial(_uncaptured, config)
    )
    try:
        config.stash[_SESSION].begin(cases)
    except _USAGE as error:
        raise pytest.UsageError(str(error)) from error
    return True if config.getoption("slurm_dry_run") else None


@pytest.fixture
def slurm_case(request: pytest.FixtureRequest) -> SlurmCase:
    """The case of this test; its job is submitted already."""
    return SlurmCase(request.param, request.config.stash[_SESSION], request.node)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """By Ctrl-C, too: jobs that this run submitted, and no others, are cancelled."""
    if _SESSION in session.config.stash:
        session.config.stash[_SESSION].end()


def _known(config: pytest.Config) -> list[str]:
    known = config.stash[_KNOWN]
    return list(known)


def _asks(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and FIXTURE in item.fixturenames


def _case_of(item: pytest.Item) -> Case | None:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):  # pytest has it on some items only
        return None
    value = item.callspec.params.get(FIXTURE)
    return value if isinstance(value, Case) else None


def _console(config: pytest.Config) -> Console:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    # Asked of pytest, since while it captures the output that is no terminal.
    terminal = isinstance(reporter, TerminalReporter) and bool(reporter.isatty)
    file = config.get_terminal_writer()._file  # noqa: SLF001 - it has no other way out
    return Console(file=file, force_terminal=terminal, width=None if terminal else 160)


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if isinstance(reporter, TerminalReporter):
        with _uncaptured(config):
            reporter.ensure_newline()
            reporter.write_line(text)


@contextmanager
def _uncaptured(config: pytest.Config) -> Iterator[None]:
    capture = config.pluginmanager.getplugin("capturemanager")
    if not isinstance(capture, CaptureManager):
        yield
        return
    with capture.global_and_fixture_disabled():
        yield
