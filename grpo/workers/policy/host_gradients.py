"""Gradients of micro-batches added up on the host while the GPU is at the next one.

FSDP2 copies a gradient to pinned memory, beside the backward pass, only where none is there yet. One that is there it
adds to at once, and for that copies each new one to fresh pageable memory first, on the thread that feeds the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class HostGradients:
    """Takes the gradients of one micro-batch after the other and adds them up in that order, on a thread of its own.

    At most two micro-batches' gradients are on the host beside the sums: one that comes and one that is being added.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Of this rank's parameters, whose gradients are DTensors on the host."""
        self._parameters = list(parameters)
        self._sums: dict[int, DTensor] = {}
        self._adder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="host-gradients")
        self._adding: Future[None] | None = None

    @contextmanager
    def adding(self) -> Iterator[Callable[[], None]]:
        """Call what it gives after each backward pass. On leaving, the parameters have the sums as their gradients.

        What an update that fails has made of them is forgotten.
        """
        try:
            yield self._take
            self._wait()
            for index, gradient in self._sums.items():
                self._parameters[index].grad = gradient
        except BaseException:
            for parameter in self._parameters:
                parameter.grad = None
            raise
        finally:
            self._sums = {}
            self._wait()

    def _take(self) -> None:
        pairs = []
        for index, parameter in enumerate(self._parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                continue
            assert isinstance(gradient, DTensor)
            if index in self._sums:
                pairs.append((self._sums[index].to_local(), gradient.to_local()))
            else:
                self._sums[index] = gradient
        self._wait()
        self._adding = self._adder.submit(_add, pairs)

    def _wait(self) -> None:
        if self._adding is not None:
            adding, self._adding = self._adding, None
            adding.result()


@torch.no_grad()
def _add(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Add the second of each pair to the first, letting each go as soon as it is added."""
    while pairs:
        total, gradient = pairs.pop()
        total += gradient
