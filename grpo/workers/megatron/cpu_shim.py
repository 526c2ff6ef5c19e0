"""Megatron-Core on a CPU over gloo, for tests and small runs. A run on a GPU never enters this module's context.

Megatron asks torch.cuda for the current device, streams and random states, makes tensors on "cuda", and compares
`Tensor.type()` with names of CUDA types. Within `megatron_on_cpu` these answer for the CPU; nothing of Megatron is
edited but its tracker of CUDA random states, which a CPU build of torch cannot fill. Dropout is 0 in every model here,
so no random state matters.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


@contextlib.contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Within it, on this thread and whatever it calls, Megatron takes the CPU for its GPU. Contexts may nest."""
    import megatron.core.tensor_parallel.random as megatron_random

    stream = _Stream()
    patches = {
        "current_device": lambda: CPU,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
    }
    tracker = _StatelessTracker()
    with contextlib.ExitStack() as stack:
        for name, replacement in patches.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, replacement))
        for name, value in {
            "_CUDA_RNG_STATE_TRACKER": tracker,
            "_CUDA_RNG_STATE_TRACKER_INITIALIZED": True,
            "_get_cuda_rng_state": lambda *_, **__: torch.get_rng_state(),
            "_set_cuda_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        }.items():
            stack.enter_context(mock.patch.object(megatron_random, name, value))
        stack.enter_context(_CudaIsCpu())
        yield


class _CudaIsCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        named = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not named and _called_by_megatron():
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if _is_cuda(named.get("device")):
            named["device"] = CPU
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], CPU, *args[2:])
        return func(*args, **named)


class _Stream:
    def wait_stream(self, *_: object) -> None: ...
    def wait_event(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...


class _StatelessTracker:
    """Megatron's CudaRNGStatesTracker where nothing random is drawn."""

    def is_initialized(self) -> bool:
        return True

    def get_states(self) -> dict[str, torch.Tensor]:
        return {}

    def set_states(self, states: dict[str, torch.Tensor]) -> None: ...

    @contextlib.contextmanager
    def fork(self, *_: object) -> Iterator[None]:
        yield


def _nothing(*_: object, **__: object) -> None: ...


def _is_cuda(device: object) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    )


def _called_by_megatron() -> bool:
    return "/megatron/" in sys._getframe(2).f_code.co_filename  # noqa: SLF001
