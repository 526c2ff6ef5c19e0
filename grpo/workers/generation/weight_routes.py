"""Where each Hugging Face weight lies in a live vLLM model, found out by watching its loader once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class UnknownRoutesError(Exception):
    """A model's loader does more than copy pieces of weights to places, or not all places were seen."""


@dataclass(frozen=True)
class _Copy:
    """A piece of the arriving tensor, counted in its elements, and the view of a live parameter that takes it."""

    target: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    whole: bool


class WeightRoutes:
    """Copies of arriving weights into a model's live parameters, all views made beforehand.

    A model's `load_weights` puts q, k and v into one matrix, takes a rank's share of it and so on, and finds its way by
    names anew for every tensor. Here it is run once, on weights without values, and its copies are noted instead of
    made. Parameters stay where they are, so captured graphs remain valid.
    """

    def __init__(self, copies: Mapping[str, Sequence[_Copy]]) -> None:
        self._copies = copies

    @classmethod
    def traced(cls, model: nn.Module, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> WeightRoutes:
        """Of a model with `load_weights(iterable of (name, tensor))` and its expected weights, tied ones once.

        Raises:
            UnknownRoutesError: weights are changed on their way or afterwards, or the copies leave parameters out.
        """
        _check_plain(model)
        probes = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}
        names = {_storage(probe): name for name, probe in probes.items()}
        watch = _Watch()
        with torch.no_grad(), watch:
            model.load_weights(iter(probes.items()))  # type: ignore[operator]
        copies: dict[str, list[_Copy]] = {name: [] for name in shapes}
        for target, source in watch.copies:
            name = names.get(_storage(source))
            if name is None or source.shape != target.shape:
                raise UnknownRoutesError("its loader changes weights before it copies them")
            whole = tuple(source.shape) == shapes[name] and source.is_contiguous()
            copies[name].append(
                _Copy(target, tuple(source.shape), tuple(source.stride()), int(source.storage_offset()), whole)
            )
        _check_complete(model, copies, watch)
        return cls(copies)

    @torch.no_grad()
    def load(self, name: str, tensor: Tensor) -> None:
        """Copy one weight of the expected shape to its places, on the current stream."""
        tensor = tensor.detach()
        for copy in self._copies[name]:
            if copy.whole:
                copy.target.copy_(tensor)
                continue
            packed = tensor.contiguous()
            offset = packed.storage_offset() + copy.offset
            copy.target.copy_(packed.as_strided(copy.shape, copy.stride, offset))

    def finish(self) -> None:
        """Wait until all copies are made."""
        devices = {copy.target.device for copies in self._copies.values() for copy in copies}
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()


class _Watch(TorchFunctionMode):
    """Notes copies and fills instead of making them."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.filled: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.copy_:
            self.copies.append((args[0].detach(), args[1]))
            return args[0]
        if function in (Tensor.fill_, Tensor.zero_):
            self.filled.append(args[0].detach())
            return args[0]
        return function(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    """What views of one tensor share; those without values all have address 0."""
    found: int = tensor.untyped_storage()._cdata  # noqa: SLF001
    return found


def _check_plain(model: nn.Module) -> None:
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in (
            "UnquantizedLinearMethod",
            "UnquantizedEmbeddingMethod",
        ):
            raise UnknownRoutesError(f"{name} packs its weights ({type(method).__name__})")


def _check_complete(model: nn.Module, copies: Mapping[str, Sequence[_Copy]], watch: _Watch) -> None:
    missed = sorted(name for name, found in copies.items() if not found)
    if missed:
        raise UnknownRoutesError(f"its loader puts {missed[0]} nowhere")
    parameters = {each.data_ptr(): each.numel() for each in model.parameters()}
    reached = sum(copy.target.numel() for found in copies.values() for copy in found)
    reached += sum(each.numel() for each in watch.filled)
    if reached != sum(parameters.values()):
        raise UnknownRoutesError(f"its loader fills {reached} of {sum(parameters.values())} elements")
