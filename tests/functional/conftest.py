"""The libraries of the functional layer warn of their own deprecations; ours are errors in the unit layer."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


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
