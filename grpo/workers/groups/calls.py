"""Calls that are under way in several groups at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from typing import Any, Protocol, TypeVar

from grpo.workers.groups.failures import RankError
from grpo.workers.groups.rank_host import follows

_GRACE_SECONDS = 10.0  # after an error that another group's failure explains, for that failure to be known
_Value = TypeVar("_Value")


class Ending(Protocol):
    """A group, for whoever gives it up."""

    def shutdown(self) -> None: ...


class Call:
    """What was asked of every rank of a group."""

    def __init__(self, group: Ending, collect: Callable[[], list[Any]]) -> None:
        """Args: `collect` waits for the answers, no longer than the call's deadline; it is called once."""
        self.group = group
        self._answers: Future[list[Any]] = in_thread(collect)

    @property
    def answers(self) -> Future[list[Any]]:
        """What the ranks return, in rank order."""
        return self._answers


def wait(calls: Sequence[Call]) -> list[list[Any]]:
    """The answers of each call. The first failure ends the groups of all calls, and is raised.

    A rank that fails only because another group's rank has failed is not the first.
    """
    futures = [call.answers for call in calls]
    wait_for(futures, return_when=FIRST_EXCEPTION)
    if all(each.done() and each.exception() is None for each in futures):
        return [each.result() for each in futures]
    error = _cause(futures)
    for call in calls:
        call.group.shutdown()
    raise error


def _cause(futures: Sequence[Future[list[Any]]]) -> BaseException:
    failed = _errors(futures)
    if all(map(_follows, failed)):
        wait_for([each for each in futures if not each.done()], timeout=_GRACE_SECONDS, return_when=FIRST_EXCEPTION)
        failed = _errors(futures)
    return next((error for error in failed if not _follows(error)), failed[0])


def _follows(error: BaseException) -> bool:
    return error.follows if isinstance(error, RankError) else follows(error)


def _errors(futures: Sequence[Future[list[Any]]]) -> list[BaseException]:
    found = [each.exception() for each in futures if each.done()]
    return [error for error in found if error is not None]


def in_thread(work: Callable[[], _Value]) -> Future[_Value]:
    """The work's result, from a thread that does not keep the process alive."""
    future: Future[_Value] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
