"""Weights from the policy to an engine in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from torch import Tensor

from grpo.placement.resources import Residence, Resource
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import LocalGenerator, StatefulPolicy


class LocalRefit:
    """Keeps the engine at the policy's version; the engine checks every name and shape on arrival."""

    def __init__(self, policy: StatefulPolicy, generator: LocalGenerator) -> None:
        self._policy = policy
        self._generator = generator
        self._delivered: int | None = None  # what this object has sent: an engine's own first weights may be others
        self._nbytes, self._export_s = 0, 0.0
        self._measured: dict[str, float] = {}

    def ensure_current(self, timer: PhaseTimer) -> None:
        """Send the weights unless the engine has this version already; its time belongs to the phase refit."""
        version = self._policy.weight_version
        given_up = self._generator.residences()[Resource.ENGINE_WEIGHTS] == Residence.ABSENT
        if self._delivered == version and not given_up:
            return
        with timer.phase("refit"):
            started, self._nbytes, self._export_s = perf_counter(), 0, 0.0
            self._generator.update_weights(self._counted(), version)
            seconds = perf_counter() - started
            timer.add_part("export", self._export_s)
            timer.add_part("load", seconds - self._export_s)
        self._delivered = version
        self._measured = {
            "performance/refit_gib": self._nbytes / 2**30, "performance/refit_gbps": self._nbytes / 1e9 / seconds,
        }  # fmt: skip

    def step_metrics(self) -> dict[str, float]:
        """Of the last refit since this was asked last: GiB, and GB/s over all of it."""
        measured, self._measured = self._measured, {}
        return measured

    def _counted(self) -> Iterator[tuple[str, Tensor]]:
        asked = perf_counter()
        for name, tensor in self._policy.export_weights():
            self._export_s += perf_counter() - asked
            self._nbytes += tensor.nbytes
            yield name, tensor
            asked = perf_counter()
