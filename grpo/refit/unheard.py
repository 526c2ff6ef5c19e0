"""A rank of the policy that nobody hears: it takes part in making the weights, in memory of its own."""

from __future__ import annotations

import torch

from grpo.refit.manifest import Bucket, Manifest
from grpo.refit.transport import Filled

SLOTS = 2  # as many as a sender has, since the policy may ask for the next bucket while one is being made


class Unheard:
    """A `Sender` to nobody."""

    def __init__(self, manifest: Manifest, *, on_gpu: bool) -> None:
        device = "cuda" if on_gpu else "cpu"
        self._flats = [torch.empty(manifest.largest, dtype=torch.uint8, device=device) for _ in range(SLOTS)]

    def join(self) -> None:
        """There is nobody to wait for."""

    def begin(self) -> None:
        """As `Sender.begin`."""

    def free(self, bucket: Bucket) -> Filled:
        """As `Sender.free`."""
        flat = self._flats[bucket.index % SLOTS][: bucket.nbytes]
        return Filled(flat, bucket.views(flat))

    def publish(self, bucket: Bucket) -> None:
        """As `Sender.publish`."""

    def finish(self) -> None:
        """As `Sender.finish`."""

    def close(self) -> None:
        """As `Sender.close`."""
        self._flats.clear()
