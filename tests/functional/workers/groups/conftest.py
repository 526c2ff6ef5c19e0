"""Groups of two ranks in the Ray that all tests share."""

import contextlib
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation
from tests.support.group_workers import Ranked

START = 100.0  # seconds; nothing waits so long unless the machine is much too busy


@pytest.fixture(scope="module")
def session(shared_ray: RaySession) -> RaySession:
    return shared_ray


@pytest.fixture
def start(session: RaySession) -> Iterator[Callable[..., RayGroup]]:
    """Starts a group of `Ranked`; all of them end with the test."""
    ended: list[Callable[[], None]] = []

    def start_group(*arguments: object, ranks: int = 2, **options: object) -> RayGroup:
        reservation = Reservation(session, ranks)
        ended.append(reservation.release)
        group = RayGroup(Ranked, arguments, reservation=reservation, **{"deadline_s": START, **options})
        ended.append(group.shutdown)
        return group

    yield start_group
    for end in reversed(ended):
        end()


def gone(pids: list[int]) -> bool:
    """Whether these processes end, within half a minute at most; one that no one has waited for has ended too."""
    ends = time.monotonic() + 30
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < ends:
        time.sleep(0.05)
    return not left


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def told(processes, ask):
    """What `ask` finds of each process that is still there: some of Ray's end by themselves at any moment."""
    found = []
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(ask(each))
    return found


def ranks_of_this_process() -> list[int]:
    """Processes of ranks that this process or a Ray of its own has started."""
    named = told(psutil.Process().children(recursive=True), lambda each: (each.pid, each.name()))
    return [pid for pid, name in named if name.startswith("ray::RankHost")]
