"""The plan that a configuration asks for."""

from __future__ import annotations

from grpo.config.schema import Config
from grpo.placement.table import Plan, Sharing, colocated, separate


def plan_of(config: Config) -> Plan:
    """Of a validated configuration. A separate plan takes no settings: there is nothing to set in it."""
    reference = config.loss_fn.reference_policy_kl_penalty != 0
    policy, settings = config.policy, config.policy.generation.colocated
    if not settings.enabled:
        return separate(reference=reference)
    sharing = Sharing(
        offload_optimizer=settings.offload_optimizer,
        offload_parameters=settings.offload_parameters,
        offload_optimizer_for_logprob=policy.offload_optimizer_for_logprob,
        offload_reference=policy.offload_reference,
        sleep_level=settings.sleep_level,
    )
    return colocated(sharing, reference=reference)
