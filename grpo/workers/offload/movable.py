"""A worker's resources: which tensors they are, where they are, and where the plan lets them go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, UntypedStorage

from grpo.placement.errors import PlacementError
from grpo.placement.resources import Residence, Resource
from grpo.placement.table import Plan
from grpo.workers.offload.memory import DeviceMemory, memory_of
from grpo.workers.offload.storages import storages_of

Tensors = Callable[[], Iterable[Tensor]]


class Resources:
    """The tensors of resources, asked for anew at each move: an optimizer makes its state in its first update.

    Masters that are the parameters themselves are no part of the optimizer state.
    """

    def __init__(self, tensors: Mapping[Resource, Tensors], plan: Plan, device: torch.device) -> None:
        """`plan` says where each may be: nothing else can be asked for."""
        self.memory: DeviceMemory = memory_of(device)
        self._tensors, self._plan, self._device = tensors, plan, device
        self._now = dict.fromkeys(tensors, Residence.GPU)
        self._away: dict[Resource, list[UntypedStorage]] = {}
        self._on_host: dict[Resource, list[int]] = {}  # sizes of what the host has an exact copy of

    def residences(self) -> dict[Resource, Residence]:
        """Of the resources that there are."""
        return dict(self._now)

    def move(self, resource: Resource, residence: Residence) -> int:
        """See `MovablePolicy.move`."""
        allowed, now = self._plan.residences(resource), self._now.get(resource, Residence.ABSENT)
        if residence not in allowed:
            raise PlacementError(
                f"{resource} is on {now} and cannot be moved to {residence}: the {self._plan.name} plan of this run "
                f"has it in every phase on {' or '.join(sorted(allowed))}"
            )
        if residence == now:
            return 0
        copied = self._arrive(resource, now) if residence == Residence.GPU else self._leave(resource, now, residence)
        self._now[resource] = residence
        return copied

    def need(self, call: str, *resources: Resource) -> None:
        """Raise PlacementError unless all are where a call can use them."""
        for each in resources:
            now = self._now.get(each, Residence.ABSENT)
            if now != Residence.GPU:
                raise PlacementError(f"{call} needs {each} on {Residence.GPU}, but it is on {now}")

    def changed(self, *resources: Resource) -> None:
        """Their content is no longer that of an earlier offload."""
        for each in resources:
            self._on_host.pop(each, None)

    def _leave(self, resource: Resource, now: Residence, residence: Residence) -> int:
        if now != Residence.GPU:
            raise PlacementError(f"{resource} is on {now} and cannot go to {residence} from there")
        storages = self._storages(resource)
        self._away[resource] = storages
        if residence == Residence.ABSENT:
            self.memory.drop(resource, storages)
            return 0
        sizes = [each.nbytes() for each in storages]
        copied = self.memory.offload(resource, storages, changed=self._on_host.get(resource) != sizes)
        self._on_host[resource] = sizes
        return copied

    def _arrive(self, resource: Resource, now: Residence) -> int:
        storages = self._away.pop(resource)
        if now == Residence.CPU:
            return self.memory.onload(resource, storages)
        self.memory.remake(resource, storages)
        return 0

    def _storages(self, resource: Resource) -> list[UntypedStorage]:
        if resource not in self._tensors:
            raise PlacementError(f"there is no {resource} here; there are: {', '.join(self._tensors)}")
        masters = resource == Resource.OPTIMIZER_STATE
        shared = self._tensors[Resource.POLICY_PARAMETERS]() if masters else ()
        return storages_of(self._tensors[resource](), self._device, without=shared)


class PlacedPolicy:
    """The part of a policy that placement moves. Gives `MovablePolicy` to a class that sets `resources`."""

    resources: Resources

    def residences(self) -> dict[Resource, Residence]:
        """Where each of its resources is; a policy without a reference has that nowhere."""
        return {Resource.REFERENCE_PARAMETERS: Residence.ABSENT, **self.resources.residences()}

    def move(self, resource: Resource, residence: Residence) -> int:
        """Move a resource; see `MovablePolicy`."""
        return self.resources.move(resource, residence)

    def release(self) -> dict[str, float]:
        """Give freed memory back to the driver; see `MovablePolicy`."""
        return self.resources.memory.release()
