"""From a recipe and overrides to a resolved configuration."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config.aliases import apply_aliases
from grpo.config.check import build, listed
from grpo.config.files import RecipeReader
from grpo.config.merge import merge
from grpo.config.overrides import parse_overrides
from grpo.config.render import render_set_by, render_yaml
from grpo.config.resolve import resolve
from grpo.config.schema import Config
from grpo.config.shape import shape_of
from grpo.config.tree import Branch, Leaf, find, leaves, removals, tree_of
from grpo.config.validate import notes, validate
from grpo.errors import ConfigError


@dataclass(frozen=True)
class ResolvedConfig:
    """A valid configuration with every value filled in that follows from others.

    `provenance` says for each dotted key who set its value: "FILE:LINE", "override", "derived from KEY" or "default".
    `notes` are for the user: keys read under another name, parts that have no effect.
    """

    config: Config
    provenance: dict[str, str]
    notes: tuple[str, ...] = ()

    def to_yaml(self) -> str:
        return render_yaml(self.config)

    def to_set_by(self) -> str:
        return render_set_by(self.config, self.provenance)


def load_config(recipe: str, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Read, merge, check and resolve.

    Args:
        recipe: a shipped name (`tiny`), a path to a YAML file, or the path of one of NeMo-RL's recipes that ships here
            (`examples/configs/grpo_math_8B.yaml`); a file that exists is always the one that is read.
        overrides: `key=value`, `~key`; the later wins.

    Raises:
        ConfigError: with every error of one stage at once: unreadable files; unknown keys and wrong types; conflicts.

    """
    reader = RecipeReader()
    tree = reader.read(recipe)
    layer = parse_overrides(overrides)
    said = reader.notes + apply_aliases(layer)
    _check_removals(tree, layer)
    tree = merge(tree, layer, shape_of(Config))
    config, derived = resolve(build(tree))
    provenance = _provenance(config, tree, derived)
    validate(config, provenance)
    return ResolvedConfig(config, provenance, (*dict.fromkeys(said), *notes(config)))


def _check_removals(tree: Branch, layer: Branch) -> None:
    problems = [f"override ~{key}: nothing is set there" for key in removals(layer) if find(tree, key) is None]
    if problems:
        raise ConfigError(listed(problems))


def _provenance(config: Config, tree: Branch, derived: dict[str, str]) -> dict[str, str]:
    where = {}
    for key, _ in leaves(tree_of(config.model_dump())):
        node = find(tree, key)
        if key in derived:
            where[key] = f"derived from {derived[key]}"
        else:
            where[key] = node.origin if isinstance(node, Leaf | Branch) else "default"
    return where
