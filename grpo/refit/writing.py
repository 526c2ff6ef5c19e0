"""Weights into the memory that they travel in, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from grpo.refit.errors import RefitError
from grpo.refit.manifest import Weight

Places = Sequence[tuple[Weight, Tensor]]  # of a bucket: what is wanted, and the contiguous memory for it


def copied(weights: Iterator[tuple[str, Tensor]], buckets: Iterable[Places]) -> Iterator[None]:
    """Copy weights that come one by one into the places of their buckets; a bucket is full at each step.

    Raises:
        RefitError: other weights come than are wanted.
    """
    for places in buckets:
        for weight, target in places:
            target.copy_(_next(weights, weight))
        yield
    for name, _ in weights:
        raise RefitError(f"the policy exports {name} after the last weight of the manifest")


def _next(weights: Iterator[tuple[str, Tensor]], expected: Weight) -> Tensor:
    name, tensor = next(weights, ("nothing more", None))
    if tensor is None:
        raise RefitError(f"the policy exports {name} where the manifest has {expected}")
    given = Weight.of(name, tensor)
    if given != expected:
        raise RefitError(f"the policy exports {given} where the manifest has {expected}")
    return tensor
