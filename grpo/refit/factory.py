"""The refits that a configuration's policy and engine need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from grpo.config.schema import Config
from grpo.refit.endpoints import RefitSource, Settings
from grpo.refit.local import LocalRefit
from grpo.refit.session import RefitSession
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.groups.worker_group import InProcessGroup
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


@contextmanager
def refits(
    config: Config, policy: StatefulPolicy | PolicyGroup, engine: LocalGenerator | EngineGroup | StreamGroup
) -> Iterator[Refit]:
    """From tensor to tensor where both are in this process, else from process to process."""
    if not isinstance(engine, EngineGroup | StreamGroup):
        assert not isinstance(policy, PolicyGroup), "an engine in this process for a policy elsewhere"
        yield LocalRefit(policy, engine)
        return
    source = None if isinstance(policy, PolicyGroup) else RefitSource(policy)
    try:
        yield RefitSession(
            policy, policy.workers if isinstance(policy, PolicyGroup) else InProcessGroup(lambda: source), engine,
            engine.workers, settings=settings(config), colocated=config.policy.generation.colocated.enabled,
            beside=isinstance(engine, StreamGroup),
        )  # fmt: skip
    finally:
        if source is not None:
            source.refit_close()


def settings(config: Config) -> Settings:
    """Of both sides."""
    timeout_s, refit = config.cluster.worker_timeout_s, config.policy.generation.refit
    return Settings(
        bucket_bytes=refit.bucket_bytes,
        checks=refit.checksum,
        deadline_s=timeout_s - min(_SOONER_SECONDS, _SOONER * timeout_s),
        on_gpu=config.cluster.gpus_per_node > 0,
    )
