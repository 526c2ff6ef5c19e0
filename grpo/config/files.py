"""Recipe files: finding them by name or path, reading them, and their `defaults:` parents."""

from dataclasses import dataclass, field
from pathlib import Path

from grpo.config.aliases import apply_aliases
from grpo.config.merge import merge
from grpo.config.nearest import did_you_mean
from grpo.config.schema import Config
from grpo.config.shape import shape_of
from grpo.config.tree import Branch, Leaf, plain
from grpo.config.yaml_format import read
from grpo.errors import ConfigError
from grpo.recipes import shipped_recipes

PARENTS = "defaults"


@dataclass
class RecipeReader:
    """Reads a recipe with its parents; `notes` collects what the user should know."""

    notes: list[str] = field(default_factory=list)

    def read(self, recipe: str) -> Branch:
        """The merged tree of a shipped name or a path. Raises ConfigError."""
        return self._read(self._find(recipe, None, ""), ())

    def _read(self, path: Path, above: tuple[Path, ...]) -> Branch:
        if path in above:
            chain = " -> ".join(display(one) for one in (*above[above.index(path) :], path))
            raise ConfigError(f"{display(above[-1])}: `{PARENTS}` go round in a circle: {chain}")
        tree = read_file(path)
        parents = tree.children.pop(PARENTS, None)
        self.notes += apply_aliases(tree)
        merged = Branch(tree.origin)
        for parent, origin in _parents(parents):
            below = self._read(self._find(parent, path.parent, f"{origin}: `{PARENTS}`: "), (*above, path))
            merged = merge(merged, below, shape_of(Config))
        return merge(merged, tree, shape_of(Config))

    def _find(self, recipe: str, folder: Path | None, said_by: str) -> Path:
        shipped = shipped_recipes()
        if folder is None and recipe in shipped:
            return shipped[recipe]
        path = (folder or Path()) / Path(recipe).expanduser()
        if path.exists():
            return path.resolve()
        if recipe in shipped:
            return shipped[recipe]
        known = Path(recipe).stem.lower()
        if (
            Path(recipe).suffix in (".yaml", ".yml")
            and Path(recipe).parent.name in ("", "configs")
            and known in shipped
        ):
            self.notes.append(f"{said_by}{recipe} is read as the shipped recipe {known}")
            return shipped[known]
        guess = did_you_mean(known, list(shipped))
        raise ConfigError(
            f"{said_by}there is no recipe {recipe!r}{guess}; shipped: {', '.join(shipped)}, or a path to a YAML file"
        )


def _parents(node: object) -> list[tuple[str, str]]:
    if node is None:
        return []
    names = node.value if isinstance(node, Leaf) and isinstance(node.value, list) else [getattr(node, "value", node)]
    if not isinstance(node, Leaf) or not names or not all(isinstance(name, str) for name in names):
        origin = node.origin if isinstance(node, Leaf | Branch) else ""
        raise ConfigError(f"{origin}: `{PARENTS}` is the name or path of a recipe, or a list of them")
    return [(str(name), node.origin) for name in names]


def read_file(path: Path) -> Branch:
    """One file, without its parents. Raises ConfigError for a file that is unreadable, empty, or not a YAML mapping."""
    name = display(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: not YAML: it is not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None
    tree = read(text, origin=name, lines=True)
    if isinstance(tree, Branch):
        return tree
    value = plain(tree)
    found = "it is empty" if value is None else f"there is a {type(value).__name__} at the top"
    raise ConfigError(f"{name}: a recipe is a mapping such as `grpo: ...`, but {found}")


def display(path: Path) -> str:
    """The name of a recipe file in messages: short for a shipped one and below the working directory."""
    if path in shipped_recipes().values():
        return f"grpo/recipes/{path.name}"
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
