"""Real processes of one torch.distributed world over gloo, forked from one process that has imported everything.

A rank that raises ends the world and is reported with its traceback; nothing waits without a deadline.
"""

import gc
import multiprocessing
import os
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

COLLECTIVE_SECONDS = 40


class RankFailedError(Exception):
    """Rank and traceback of the first failure."""

    def __init__(self, message: str, cell: int) -> None:
        """`cell`: the index of the cell in which it was."""
        super().__init__(message)
        self.cell = cell


def run_cells(
    function: Callable[[Any], Any], cells: Sequence[Any], *, world: int, preload: Sequence[str], seconds: float
) -> Iterator[list[Any]]:
    """What `function(cell)` returns on each rank, cell by cell; `function` and the cells must be picklable.

    `seconds` is for a cell; the first has a minute more, in which the processes start.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *preload])
    with tempfile.TemporaryDirectory() as folder, _world(context, function, cells, world, Path(folder)) as results:
        answers: list[dict[int, Any]] = [{} for _ in cells]
        for index in range(len(cells)):
            deadline = time.monotonic() + seconds + (0 if index else 60)
            while len(answers[index]) < world:
                _collect(results, answers, index, world, deadline)
            yield [answers[index][rank] for rank in range(world)]


def try_cells(
    function: Callable[[Any], Any], cells: Sequence[Any], *, world: int, preload: Sequence[str], seconds: float
) -> Iterator[tuple[Any, list[Any] | RankFailedError]]:
    """As `run_cells`, but each cell with its answers or the failure that ended its world; the others have another."""
    rest = list(cells)
    while rest:
        done = []
        try:
            for answers in run_cells(function, rest, world=world, preload=preload, seconds=seconds):
                yield rest[len(done)], answers
                done.append(len(done))
        except RankFailedError as error:
            yield rest[error.cell], error
            done.append(error.cell)  # a rank that fails may have run ahead of answers that are still to come
        rest = [cell for index, cell in enumerate(rest) if index not in done]


@contextmanager
def _world(
    context: ForkServerContext, function: Callable[[Any], Any], cells: Sequence[Any], world: int, folder: Path
) -> Iterator[Any]:
    results = context.Queue()
    processes = [
        context.Process(
            target=_rank, args=(rank, world, str(folder / "store"), function, list(cells), results), daemon=True
        )
        for rank in range(world)
    ]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        for process in processes:
            process.start()
        yield results
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join(10)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _collect(results: Any, answers: list[dict[int, Any]], index: int, world: int, deadline: float) -> None:
    try:
        rank, of_cell, value, error = results.get(timeout=max(0.01, deadline - time.monotonic()))
    except queue.Empty:
        silent = sorted(set(range(world)) - answers[index].keys())
        raise RankFailedError(f"cell {index}: ranks {silent} of {world} gave no answer in time", index) from None
    if error is not None:
        raise RankFailedError(f"rank {rank} of {world} in cell {of_cell}:\n{error}", of_cell)
    answers[of_cell][rank] = pickle.loads(value)  # noqa: S301 (of our own process); ranks may run ahead


def _rank(  # noqa: PLR0917 (a process's arguments)
    rank: int, world: int, store: str, function: Callable[[Any], Any], cells: list[Any], results: Any
) -> None:
    import torch
    from torch import distributed as dist

    gc.collect()
    gc.freeze()  # all that was imported: a collection would look through it every time, and copy its pages
    torch.set_num_threads(1)
    index = 0
    try:
        timeout = timedelta(seconds=COLLECTIVE_SECONDS)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
        for index, cell in enumerate(cells):
            value = function(cell)
            dist.barrier()
            results.put((rank, index, pickle.dumps(value), None))  # whole: torch would send tensors as open files
        results.close()
        results.join_thread()
    except BaseException:
        results.put((rank, index, None, traceback.format_exc()))
        results.close()
        results.join_thread()
        raise
