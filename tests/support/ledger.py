"""A residence ledger: real worker code on a CPU, every storage with a pretend residence, and a GPU's errors.

Workers are made for the device `PRETEND_GPU`, which torch takes for the CPU and still tells apart where it is named:
what is made or sent there is on the pretend GPU. What an operation makes is where its operands are. An operation that
mixes the two, other than a copy, raises as CUDA does; so does one that touches what placement has offloaded, whose
memory a GPU would have freed. What was never said to be anywhere (batches, constants) mixes with everything.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.placement.resources import Resource
from grpo.workers.offload.storages import bytes_of, storages_of

PRETEND_GPU = torch.device("cpu", 0)
GPU, HOST, FREED = "cuda:0", "cpu", "freed"

_COPIES = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"}
_POISON = 0xFF  # NaN in every float


class MixedResidenceError(RuntimeError):
    """What CUDA would have raised, or worse."""


class Ledger(TorchDispatchMode):
    """Active within `with ledger:`, on this thread."""

    def __init__(self) -> None:
        super().__init__()
        # By address of the storage itself. The weak reference keeps that address from being used again, so that an
        # entry cannot speak of another storage, and says when its own is gone.
        self._entries: dict[int, tuple[StorageWeakRef, str]] = {}
        self._paused = False

    def beside(self) -> "Ledger":
        """The same ledger for another thread."""
        other = Ledger()
        other._entries = self._entries
        return other

    def mark(self, tensors: Iterable[Tensor], residence: str) -> None:
        """Say where the storages of tensors are; their content stays."""
        for storage in storages_of(tensors, PRETEND_GPU):
            self.mark_storage(storage, residence)

    def mark_storage(self, storage: UntypedStorage, residence: str) -> None:
        if len(self._entries) > 20_000:
            for key, entry in list(self._entries.items()):  # other threads may add some meanwhile
                if entry[0].expired():
                    self._entries.pop(key, None)
        self._entries[storage._cdata] = (StorageWeakRef(storage), residence)

    def where(self, tensor: Tensor) -> str | None:
        """Of a plain tensor's storage; None if nothing was said of it."""
        entry = self._entries.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[1]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within it nothing is checked or written down."""
        self._paused, before = True, self._paused
        try:
            yield
        finally:
            self._paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # DTensor asks again with what is in it
        kwargs = kwargs or {}
        if self._paused or func.is_view:
            return func(*args, **kwargs)
        name = func._schema.name
        operands = _tensors(args) + _tensors(kwargs.values())
        found = {id(each): self.where(each) for each in operands}
        place = self._check(name, operands, found)
        result = func(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None:
            place = GPU if device == PRETEND_GPU else None
        elif name in _COPIES and name != "aten::_to_copy":
            self._copied(operands, found)
            return result
        if place is not None:
            for each in _tensors((result, *_written(func, args, kwargs))):
                if found.get(id(each), self.where(each)) is None:
                    self.mark_storage(each.untyped_storage(), place)
        return result

    def _copied(self, operands: Sequence[Tensor], found: dict[int, str | None]) -> None:
        """A copy's target stays where it is; one of which nothing is known is on the GPU if its source is."""
        targets, sources = operands[: len(operands) // 2], operands[len(operands) // 2 :]
        for target, source in zip(targets, sources, strict=False):
            if found[id(target)] is None and found[id(source)] == GPU:
                self.mark_storage(target.untyped_storage(), GPU)

    def _check(self, name: str, operands: Sequence[Tensor], found: dict[int, str | None]) -> str | None:
        """Where the result will be."""
        several = "_foreach" in name or "_fused" in name
        of_cpu = [each for each in operands if found[id(each)] == HOST]
        if any(found[id(each)] == FREED and each.numel() for each in operands):
            raise MixedResidenceError(f"{name}: an operand is offloaded and its memory on {GPU} is freed")
        places = {place for place in found.values() if place is not None}
        if name in _COPIES:
            return found[id(operands[0])]
        if name.startswith("c10d::") and of_cpu:
            raise MixedResidenceError(f"No backend type associated with device type cpu (in {name})")
        if places == {GPU, HOST} and (several or any(each.ndim for each in of_cpu)):
            raise MixedResidenceError(
                f"Expected all tensors to be on the same device, but found at least two devices, {GPU} and {HOST}! "
                f"(in {name}, shapes {[tuple(each.shape) for each in of_cpu]} on {HOST})"
            )
        return GPU if GPU in places else next(iter(places), None)


class PretendMemory:
    """`DeviceMemory` on the ledger: what leaves is copied and its place poisoned, and the ledger knows it as freed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._copies: dict[str, list[Tensor]] = {}
        self.calls: list[str] = []

    def offload(self, name: str, storages: Sequence[UntypedStorage], *, changed: bool) -> int:
        if changed:
            with self._ledger.paused():
                self._copies[name] = [bytes_of(each).clone() for each in storages]
        self._free(storages)
        self.calls.append(f"offload {name}" if changed else f"free {name}")
        return sum(each.nbytes() for each in storages) if changed else 0

    def onload(self, name: str, storages: Sequence[UntypedStorage]) -> int:
        with self._ledger.paused():
            for each, copy in zip(storages, self._copies[name], strict=True):
                bytes_of(each).copy_(copy)
        self._mark(storages, GPU)
        self.calls.append(f"onload {name}")
        return sum(each.nbytes() for each in storages)

    def drop(self, name: str, storages: Sequence[UntypedStorage]) -> None:
        self._free(storages)
        self.calls.append(f"drop {name}")

    def remake(self, name: str, storages: Sequence[UntypedStorage]) -> None:
        self._mark(storages, GPU)
        self.calls.append(f"remake {name}")

    def release(self) -> dict[str, float]:
        return {}

    def _free(self, storages: Sequence[UntypedStorage]) -> None:
        with self._ledger.paused():
            for each in storages:
                bytes_of(each).fill_(_POISON)
        self._mark(storages, FREED)

    def _mark(self, storages: Sequence[UntypedStorage], residence: str) -> None:
        for each in storages:
            self._ledger.mark_storage(each, residence)


def adopt_policy(ledger: Ledger, policy: Any) -> PretendMemory:
    """Have the ledger know a policy's tensors as on the GPU, and its placement move them there."""
    memory = policy.resources.memory = PretendMemory(ledger)
    for tensors in policy.resources._tensors.values():
        ledger.mark(tensors(), GPU)
    return memory


def adopt_engine(ledger: Ledger, engine: Any) -> PretendMemory:
    """The same of an `HfGenerator`."""
    engine._device = PRETEND_GPU
    memory = engine.memory = PretendMemory(ledger)
    ledger.mark(engine._weights.blocks(), GPU)
    return memory


def misplace(ledger: Ledger, policy: Any, resource: Resource, residence: str = HOST) -> None:
    """A move that placement knows nothing of: the fault that the ledger is there for."""
    for storage in policy.resources._storages(resource):
        ledger.mark_storage(storage, residence)


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation writes to."""
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in _targets(func)]


@functools.cache
def _targets(func: Any) -> list[tuple[int, str]]:
    arguments = enumerate(func._schema.arguments)
    return [(place, each.name) for place, each in arguments if each.alias_info is not None and each.alias_info.is_write]


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += _tensors(each)
    return found
