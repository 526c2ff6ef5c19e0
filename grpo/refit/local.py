"""Weights from the policy to an engine in the same process."""

from grpo.placement.resources import Residence, Resource
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import Generator, Policy


class LocalRefit:
    """Keeps the engine at the policy's version; the engine checks every name and shape on arrival."""

    def __init__(self, policy: Policy, generator: Generator) -> None:
        self._policy = policy
        self._generator = generator
        self._delivered: int | None = None  # what this object has sent: an engine's own first weights may be others

    def ensure_current(self, timer: PhaseTimer) -> None:
        """Send the weights unless the engine has this version already; its time belongs to the phase refit."""
        version = self._policy.weight_version
        given_up = self._generator.residences()[Resource.ENGINE_WEIGHTS] == Residence.ABSENT
        if self._delivered == version and not given_up:
            return
        with timer.phase("refit"), timer.part("transfer"):
            self._generator.update_weights(self._policy.export_weights(), version)
        self._delivered = version
