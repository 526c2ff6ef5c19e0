"""Every rule over several keys, applied to a resolved configuration."""

from collections.abc import Mapping

from grpo.config.check import listed, show
from grpo.config.rules import algorithm, asynchronous, parallel, placement, run, sampling
from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config
from grpo.errors import ConfigError

RULES: tuple[Rule, ...] = (
    *algorithm.RULES, *sampling.RULES, *parallel.RULES, *placement.RULES, *run.RULES, *asynchronous.RULES,
)  # fmt: skip


def validate(config: Config, provenance: Mapping[str, str]) -> None:
    """Raises ConfigError with one line for each conflict: keys, values, where each was set, and what would be valid."""
    conflicts = [conflict for rule in RULES for conflict in rule(config)]
    if conflicts:
        raise ConfigError(listed([_message(config, conflict, provenance) for conflict in conflicts]))


def _message(config: Config, conflict: Conflict, provenance: Mapping[str, str]) -> str:
    values = config.model_dump()
    shown = []
    for key in conflict.keys:
        value = values
        for name in key.split("."):
            value = value[name]
        shown.append(f"{key} = {show(value)} ({provenance.get(key, 'default')})")
    return f"{', '.join(shown)}: {conflict.reason}"


def notes(config: Config) -> tuple[str, ...]:
    """What is allowed and probably not meant."""
    return (*run.notes(config), *placement.notes(config))
