"""From a recipe and overrides to a resolved configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.config.schema import Config
from grpo.config.tree import Branch, leaves, plain, put
from grpo.config.yaml_format import dump, read


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration with every derived value filled in."""

    config: Config
    provenance: dict[str, str]
    notes: tuple[str, ...] = ()

    def to_yaml(self) -> str:
        return dump(self.config.model_dump())


def load_config(recipe: str, overrides: Sequence[str] = ()) -> ResolvedConfig:
    path = Path(recipe)
    if not path.is_file():
        path = Path(__file__).parents[1] / "recipes" / f"{recipe}.yaml"
    tree = read(path.read_text(), origin=str(path), lines=True)
    assert isinstance(tree, Branch)
    for override in overrides:
        key, _, value = override.partition("=")
        put(tree, key, read(value, origin="override", lines=False))
    config = Config.model_validate(plain(tree))
    generation = config.policy.generation
    new_tokens = generation.max_new_tokens or config.policy.max_total_sequence_length
    return ResolvedConfig(
        config.model_copy(
            update={
                "policy": config.policy.model_copy(
                    update={"generation": generation.model_copy(update={"max_new_tokens": new_tokens})}
                )
            }
        ),
        {key: leaf.origin for key, leaf in leaves(tree)},
    )
