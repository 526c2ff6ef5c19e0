"""A run's refits between a policy and an engine in processes of their own: made ready once, then one call a side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from grpo.placement.resources import Residence, Resource
from grpo.refit.endpoints import Settings
from grpo.refit.manifest import Manifest, agreed
from grpo.refit.plan import Plan, plan_refit
from grpo.refit.transport import Received, Sent, check_arrival
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.groups.calls import wait
from grpo.workers.groups.worker_group import WorkerGroup


class RefitPolicy(Protocol):
    """A policy, for a session."""

    weight_version: int


class RefitEngine(Protocol):
    """An engine whose ranks are `RefitTarget`s, for a session."""

    def residences(self) -> Mapping[Resource, Residence]: ...

    def updated(self, version: int) -> None:
        """All ranks have taken the weights of that version."""
        ...


@dataclass(frozen=True)
class _Agreement:
    manifest: Manifest
    plan: Plan


class RefitSession:
    """Keeps the engine at the policy's version. Weights go from ranks to ranks, never through this process."""

    def __init__(
        self,
        policy: RefitPolicy,
        sources: WorkerGroup,
        engine: RefitEngine,
        targets: WorkerGroup,
        *,
        settings: Settings,
        colocated: bool,
        beside: bool = False,
    ) -> None:
        """Nothing is made ready before the first refit.

        Args:
            policy: says which version is current.
            sources: its ranks, `RefitSource`s.
            engine: is told what has arrived.
            targets: its ranks, `RefitTarget`s.
            settings: for both sides.
            colocated: policy and engine share their devices.
            beside: the engine's ranks answer other calls while they receive.
        """
        self._policy, self._sources, self._engine, self._targets = policy, sources, engine, targets
        self._settings, self._colocated, self._beside = settings, colocated, beside
        self._agreement: _Agreement | None = None
        self._delivered: int | None = None  # what this object has sent: an engine's own first weights may be others
        self._measured: dict[str, float] = {}

    def ensure_current(self, timer: PhaseTimer) -> None:
        """Send the weights unless the engine has this version already; its time belongs to the phase refit.

        Raises:
            RefitError: the two sides do not agree, or something arrived altered.
            WorkerError: a rank of either side raised, died or did not answer in time: both have been ended.
        """
        given_up = self._engine.residences()[Resource.ENGINE_WEIGHTS] == Residence.ABSENT
        if self._delivered == self._policy.weight_version and not given_up:
            return
        with timer.phase("refit"):
            if self._agreement is None:
                with timer.part("connect"):
                    self._agreement = self._connect()
            self._send(self._agreement, self._policy.weight_version, timer)

    def step_metrics(self) -> dict[str, float]:
        """Of the last refit since this was asked last: GiB and messages to one engine rank, and GB/s over all of it."""
        measured, self._measured = self._measured, {}
        return measured

    def _connect(self) -> _Agreement:
        manifests, places = zip(*self._sources.call_all("refit_describe", self._settings), strict=True)
        manifest = agreed(manifests)
        engines = self._targets.call_all("refit_accept", manifest, self._settings)
        plan = plan_refit(places, engines, colocated=self._colocated)
        counts = [len(plan.receivers(rank)) for rank in range(self._sources.world_size)]
        offered = [(plan.transport, *each) for each in zip(counts, self._sources.addresses, strict=True)]
        hellos = self._sources.call_each("refit_open", offered)
        joining = [
            (hellos[source][plan.number(rank)], plan.number(rank), address)
            for rank, (source, address) in enumerate(zip(plan.source_of, self._targets.addresses, strict=True))
        ]
        wait([self._sources.begin_all("refit_join"), self._targets.begin_each("refit_join", joining)])
        return _Agreement(manifest, plan)

    def _send(self, agreement: _Agreement, version: int, timer: PhaseTimer) -> None:
        started = perf_counter()
        receiving = self._targets.begin_all("refit_receive", version, beside=self._beside)
        sent, received = wait([self._sources.begin_all("refit_send", version), receiving])
        seconds = perf_counter() - started
        for rank, (source, arrived) in enumerate(zip(agreement.plan.source_of, received, strict=True)):
            check_arrival(agreement.manifest, sent[source], arrived, engine=f"engine rank {rank}")
        self._engine.updated(version)
        self._delivered = version
        for part, value in parts([each for each in sent if each is not None], received, seconds).items():
            timer.add_part(part, value)
        nbytes = max(each.nbytes for each in received)
        self._measured = {
            "performance/refit_gib": nbytes / 2**30,
            "performance/refit_gbps": nbytes / 1e9 / seconds,
            "performance/refit_messages": float(max(each.messages for each in received)),
        }


def parts(sent: list[Sent], received: list[Received], seconds: float) -> dict[str, float]:
    """The seconds of a refit, each in one part: loading first, then what of the export that did not hide.

    What is left is `transfer`: waiting for what travels, and for the calls.
    """
    load = min(seconds, max(each.load_s for each in received))
    export = min(seconds - load, max(each.export_s for each in sent))
    return {"export": export, "transfer": seconds - load - export, "load": load}
