"""The table of all keys, for docs/configuration.md."""

from collections.abc import Iterator

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grpo.config.aliases import ALIASES
from grpo.config.check import show
from grpo.config.resolve import DERIVATIONS
from grpo.config.schema import Config, Section
from grpo.config.shape import Shape, describe, field_shape, kind_of, shape_of

_INTRODUCTION = """\
# Configuration

A run is described by a recipe: a shipped name (`tiny`) or a YAML file. `grpo config RECIPE key=value ...` prints the
resolved whole, `--set-by` where each value came from. Keys follow NeMo-RL's names where the concept is the same.

- `defaults:` names a parent recipe, or a list of them, by shipped name or by path relative to the file. Mappings are
  merged key by key; lists and scalars are replaced; of several parents the later wins, and the file over all.
- Overrides are `dotted.key=value`, the later winning; the value is YAML (`True`, `null`, `[1, 2]`, `3e-7`). Where text
  is wanted it is the text as it stands. `~dotted.key` forgets what the recipe says of a key, of a mapping or of an
  entry of `env`. `+key=value` and `++key=value` are the same as `key=value`.
- Where `kind` chooses among sections (`data.train`, `data.validation`), another kind drops the inherited keys that it
  lacks.
- Other paths than those of `defaults:` are relative to the working directory.
- Plain scalars are YAML 1.2's: `3e-7` is a number, `on` and `no` are text. A key given twice is an error.
- Unknown keys, wrong types and conflicts between keys are errors before anything starts; all are listed at once.

This page is written by `grpo.config.reference.markdown()`.
"""


def markdown() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for key, section, note in _sections(shape_of(Config), "", ""):
        rows = [_row(name, field) for name, field in section.model_fields.items()]
        leaves = [row for row in rows if row]
        if leaves:
            said = _first_line(section)
            parts.append(f"\n## `{key}`{note}\n" + (f"\n{said}\n" if said else ""))
            parts.append("\n| key | valid | default | |\n|---|---|---|---|\n" + "".join(leaves))
    parts.append("\n## Derived values\n\nThese take a value from other keys where they are null:\n\n")
    parts += [f"- `{key}`\n" for key, _ in DERIVATIONS]
    parts.append("\n## Other spellings\n\nRead as if written the other way, with a note:\n\n")
    parts.append("| NeMo-RL's key | here |\n|---|---|\n")
    for old, alias in ALIASES.items():
        values = (
            "" if alias.values is None else ": " + ", ".join(f"{show(a)} is `{b}`" for a, b in alias.values.items())
        )
        parts.append(f"| `{old}` | `{alias.new}`{values} |\n")
    return "".join(parts)


def _sections(shape: Shape, key: str, note: str) -> Iterator[tuple[str, type[Section], str]]:
    for section in shape.sections:
        kind = f" with `kind: {kind_of(section)}`" if len(shape.sections) > 1 else note
        yield key, section, kind
        for name, field in section.model_fields.items():
            below = field_shape(field)
            inner = f"{key}.{name}" if key else name
            if below.item is not None and shape_of(below.item).sections:
                yield from _sections(shape_of(below.item), f"{inner}.NAME", "")
            elif below.sections:
                yield from _sections(below, inner, "")


def _row(name: str, field: FieldInfo) -> str:
    shape = field_shape(field)
    if len(shape.sections) == 1 or (shape.item is not None and shape_of(shape.item).sections):
        return ""
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = "required" if default is PydanticUndefined else f"`{'{}' if default == {} else show(default)}`"
    return f"| `{name}` | {describe(shape)} | {shown} | {(field.description or '').replace('|', chr(92) + '|')} |\n"


def _first_line(section: type[Section]) -> str:
    own = section.__dict__.get("__doc__")
    return own.strip().splitlines()[0] if own else ""
