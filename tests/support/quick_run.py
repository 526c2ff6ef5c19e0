"""A whole run in a fraction of a second, for tests that need many: as `small_run`, without what only people read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from grpo.checkpoint.signals import StopRequest
from grpo.config import ResolvedConfig
from grpo.telemetry import run_directory
from grpo.trainer import run as trainer_run
from grpo.trainer.run import FinishedRun, train
from tests.support.small_run import small

QUICK = ("data.train.kwargs.count=300", "logger.tensorboard_enabled=false")


def quick(directory: Path, *overrides: str) -> ResolvedConfig:
    return small(directory, *QUICK, *overrides)


@contextmanager
def without_reports() -> Iterator[None]:
    """The report and the list of installed packages take longer than the run."""
    with (
        mock.patch.object(trainer_run, "write_report", lambda directory: (directory / "report.html", None)),
        mock.patch.object(run_directory, "describe_environment", dict),
    ):
        yield


def run_quick(directory: Path, *overrides: str, fresh: bool = False) -> FinishedRun:
    with without_reports(), StopRequest() as stop:
        return train(quick(directory, *overrides), fresh=fresh, quiet=True, command=["grpo", "train"], stop=stop)
