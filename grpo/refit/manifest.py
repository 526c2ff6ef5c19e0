"""What travels in a refit, agreed once a run: names, shapes, dtypes, their order and the buckets that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpo.refit.errors import RefitError
from grpo.workers.generation.expected_weights import ExpectedWeights

ALIGNMENT = 16  # bytes: of every tensor's start in its bucket, so that copies are wide and checksums see whole words
_SHOWN = 3


@dataclass(frozen=True)
class Weight:
    """A tensor by its Hugging Face name."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as torch calls it: bfloat16

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Weight:
        return cls(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Bucket:
    """Consecutive tensors that travel as one message."""

    index: int
    weights: tuple[Weight, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Of each tensor from the start of the bucket, in bytes; the last is the size of the bucket."""
        found = [0]
        for weight in self.weights:
            found.append(found[-1] + _aligned(weight.nbytes))
        return tuple(found)

    @property
    def nbytes(self) -> int:
        return self.offsets[-1]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors that lie in `flat`, [nbytes or more] uint8."""
        return [
            flat[start : start + weight.nbytes].view(weight.torch_dtype).view(weight.shape)
            for start, weight in zip(self.offsets, self.weights, strict=False)
        ]


@dataclass(frozen=True)
class Manifest:
    """Buckets in the order in which they are sent."""

    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, weights: Iterable[Weight], bucket_bytes: int) -> Manifest:
        """Fill buckets up to `bucket_bytes`; a larger tensor is one by itself.

        Raises:
            RefitError: a name comes twice.
        """
        held: list[list[Weight]] = []
        free, seen = 0, set()
        for weight in weights:
            if weight.name in seen:
                raise RefitError(f"the policy exports {weight.name} twice")
            seen.add(weight.name)
            size = _aligned(weight.nbytes)
            if size > free or not held:
                held.append([])
                free = bucket_bytes
            held[-1].append(weight)
            free = max(0, free - size)
        return cls(tuple(Bucket(index, tuple(each)) for index, each in enumerate(held)))

    @cached_property
    def weights(self) -> dict[str, Weight]:
        """By name, in order."""
        return {weight.name: weight for bucket in self.buckets for weight in bucket.weights}

    @property
    def nbytes(self) -> int:
        """Sent to each engine rank in a refit."""
        return sum(bucket.nbytes for bucket in self.buckets)

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max((bucket.nbytes for bucket in self.buckets), default=0)

    def check(self, expected: ExpectedWeights, dtype: str, *, engine: str) -> None:
        """Refuse, before anything is sent, what the engine would not take.

        Args:
            expected: of the engine's model.
            dtype: that the engine computes in.
            engine: its name in the message.

        Raises:
            RefitError: all that differs, with what each side has.
        """
        found = [*self._names(expected, engine), *self._kinds(expected, dtype, engine)]
        if found:
            more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise RefitError(f"policy and {engine} do not have the same weights: {'; '.join(found[:_SHOWN])}{more}")

    def _names(self, expected: ExpectedWeights, engine: str) -> list[str]:
        found = []
        for name in self.weights:
            if name in expected.aliases:
                found.append(f"the policy sends {name}, which {engine} ties to {expected.aliases[name]}")
            elif name not in expected.shapes:
                found.append(f"the policy sends {name}, which {engine} does not have")
        return found + [
            f"{engine} needs {name} {list(shape)}, which the policy does not send"
            for name, shape in expected.shapes.items()
            if name not in self.weights
        ]

    def _kinds(self, expected: ExpectedWeights, dtype: str, engine: str) -> list[str]:
        found = []
        for name, weight in self.weights.items():
            shape = expected.shapes.get(name)
            if shape is not None and tuple(shape) != weight.shape:
                found.append(f"the policy sends {weight}, {engine} has shape {list(shape)}")
            elif shape is not None and weight.dtype != dtype:
                found.append(f"the policy sends {weight}, {engine} computes in {dtype}")
        return found


def agreed(manifests: Sequence[Manifest]) -> Manifest:
    """The one that all ranks of the policy gave.

    Raises:
        RefitError: they differ.
    """
    first = manifests[0]
    for rank, each in enumerate(manifests):
        if each != first:
            odd: Any = set(each.weights.values()) ^ set(first.weights.values())
            told = ", ".join(sorted(map(str, odd))[:_SHOWN]) or "their order"
            raise RefitError(f"rank 0 and rank {rank} of the policy would export different weights: {told}")
    return first


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
