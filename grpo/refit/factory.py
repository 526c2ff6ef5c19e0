"""The refits that a configuration's policy and engine need."""

from __future__ import annotations

from typing import Protocol

from grpo.config.schema import Config
from grpo.refit.endpoints import Settings
from grpo.refit.local import LocalRefit
from grpo.refit.session import RefitSession
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.protocol import LocalGenerator, StatefulPolicy

_SOONER = 0.2  # of a call's deadline, at most so many seconds: who waits tells of it before who hangs is ended
_SOONER_SECONDS = 4.0


class Refit(Protocol):
    """Brings the engine to the policy's weights."""

    def ensure_current(self, timer: PhaseTimer) -> None:
        """Send the weights unless the engine has this version already; its time belongs to the phase refit."""
        ...

    def step_metrics(self) -> dict[str, float]:
        """What was sent since this was asked last."""
        ...


def refits(
    config: Config, policy: StatefulPolicy | PolicyGroup, engine: LocalGenerator | EngineGroup | StreamGroup
) -> Refit:
    """From tensor to tensor where both are in this process, else from process to process."""
    if isinstance(engine, EngineGroup | StreamGroup):
        assert isinstance(policy, PolicyGroup), "a policy in this process for an engine elsewhere"
        return RefitSession(
            policy, policy.workers, engine, engine.workers, settings=settings(config),
            colocated=config.policy.generation.colocated.enabled, beside=isinstance(engine, StreamGroup),
        )  # fmt: skip
    assert not isinstance(policy, PolicyGroup), "an engine in this process for a policy elsewhere"
    return LocalRefit(policy, engine)


def settings(config: Config) -> Settings:
    """Of both sides."""
    timeout_s, refit = config.cluster.worker_timeout_s, config.policy.generation.refit
    return Settings(
        bucket_bytes=refit.bucket_bytes,
        checks=refit.checksum,
        deadline_s=timeout_s - min(_SOONER_SECONDS, _SOONER * timeout_s),
        on_gpu=config.cluster.gpus_per_node > 0,
    )
