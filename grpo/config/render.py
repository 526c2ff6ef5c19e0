"""A resolved configuration as text."""

from collections.abc import Mapping

from grpo.config.check import show
from grpo.config.schema import Config
from grpo.config.tree import leaves, tree_of
from grpo.config.yaml_format import dump


def render_yaml(config: Config) -> str:
    """The whole configuration as YAML; loading it gives the same configuration."""
    return dump(config.model_dump())


def render_set_by(config: Config, provenance: Mapping[str, str]) -> str:
    """One line a key: `key=value  # where it was set`."""
    lines = [(f"{key}={_value(leaf.value)}", provenance[key]) for key, leaf in leaves(tree_of(config.model_dump()))]
    width = min(60, max(len(text) for text, _ in lines))
    return "".join(f"{text:<{width}}  # {origin}\n" for text, origin in lines)


def _value(value: object) -> str:
    if value == {}:
        return "{}"
    return value if isinstance(value, str) else show(value)
