"""Overrides of the command line: `key=value`, and `~key` to forget an inherited value."""

from collections.abc import Sequence

from grpo.config.schema import Config
from grpo.config.shape import at
from grpo.config.tree import Branch, Leaf, Node, Removed, put
from grpo.config.yaml_format import read
from grpo.errors import ConfigError

ORIGIN = "override"


def parse_overrides(overrides: Sequence[str]) -> Branch:
    """One layer of all overrides, the later winning.

    Values are YAML (`True`, `null`, `[1, 2]`, `3e-7`, `{split: train}`). Where the schema wants text, what YAML would
    take for something else is the text as it stands: `data.train.prompt_template={question}`. Hydra's `+key=` and
    `++key=` mean `key=`. Raises ConfigError for an override of neither form, and for a value that is not YAML.
    """
    layer = Branch(ORIGIN)
    for override in overrides:
        key, value = _parse(override)
        put(layer, key, value)
    return layer


def _parse(override: str) -> tuple[str, Node]:
    if override.startswith("~"):
        return _checked(override[1:], override), Removed(ORIGIN)
    key, equals, text = override.lstrip("+").partition("=")
    if not equals:
        raise ConfigError(f"override {override!r}: write key=value, or ~key to forget an inherited value")
    key = _checked(key.strip(), override)
    return key, _value(key, text.strip())


def _checked(key: str, override: str) -> str:
    if not key or not all(key.split(".")) or "=" in key:
        raise ConfigError(f"override {override!r}: {key!r} is not a dotted key such as policy.optimizer.kwargs.lr")
    return key


def _value(key: str, text: str) -> Node:
    shape = at(Config, key)
    wants_text = shape is not None and shape.annotation is str
    try:
        node = read(text, origin=ORIGIN, lines=False)
    except ConfigError as error:
        if wants_text:
            return Leaf(text, ORIGIN)
        raise ConfigError(f"override {key}={text}: {str(error).removeprefix(f'{ORIGIN}: ')}") from None
    if wants_text and not (isinstance(node, Leaf) and (node.value is None or isinstance(node.value, str))):
        return Leaf(text, ORIGIN)
    return node
