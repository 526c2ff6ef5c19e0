"""The policy worker that a configuration asks for."""

from __future__ import annotations

from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.protocol import Policy


def make_policy(config: Config) -> Policy:
    """Load the model on the enabled backend.

    Raises:
        ConfigError: the backend is not installed, or there is no GPU where one is asked for.
        ModelError: the model's folder is missing, unreadable or of an unsupported architecture.
    """
    if not config.policy.megatron_cfg.enabled:
        return DTensorPolicy.from_config(config)
    try:
        from grpo.workers.megatron.policy import MegatronPolicy
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("megatron"):
            raise
        raise ConfigError(
            "policy.megatron_cfg.enabled is true but megatron-core is not installed: "
            "pip install 'grpo-matrix[megatron]'"
        ) from error
    return MegatronPolicy.from_config(config)
