"""The libraries of the functional layer warn of their own deprecations; ours are errors in the unit layer.

Two processes share the tests (`--dist loadgroup`), and a group of tests is one piece of work:

- `ray`: one Ray for all of them (`shared_ray`)
- `ray-own`: those that start and end a Ray of their own, or need that there is none
- `vllm`: vLLM in this process, which takes ten seconds to import
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.workers.groups.ray_session import RaySession

# The longest pieces of work first: one that came last would run alone.
_GROUPS = ("ray", "vllm", "ray-own")
_LONG_FILES = ("test_parity.py", "test_no_inert_key.py", "test_kill.py", "test_cases.py", "test_resharding.py")
_RAY_CPUS = 8  # the most ranks and engines that a test has at a time


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = next((str(mark.args[0]) for mark in item.iter_markers("xdist_group")), None)
    if group in _GROUPS:
        return _GROUPS.index(group)
    return len(_GROUPS) + (item.path.name not in _LONG_FILES)


class SharedRay:
    """Ray for the tests of this process that ask for it, started by the first of them."""

    def __init__(self) -> None:
        self._session: RaySession | None = None

    def started(self) -> RaySession:
        if self._session is None:
            self._session = RaySession(cpus=_RAY_CPUS)
        return self._session

    def end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


_SHARED = SharedRay()


@pytest.fixture(scope="module")
def shared_ray() -> RaySession:
    """Ray that all tests share; runs and engines of this process find it and leave it. `usefixtures` of a module."""
    return _SHARED.started()


@pytest.fixture(autouse=True, scope="module")
def _no_ray_for_others(request: pytest.FixtureRequest) -> None:
    if not any("shared_ray" in mark.args for mark in request.node.iter_markers("usefixtures")):
        _SHARED.end()


def pytest_sessionfinish() -> None:
    _SHARED.end()


@pytest.fixture(autouse=True, scope="module")
def _no_process_group_is_left() -> Iterator[None]:
    """A Megatron-Core policy makes this process a world of its own; other tests make their own."""
    yield
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is not None:
        megatron.destroy_model_parallel()
        from torch import distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
