"""YAML as this project reads and writes it: version 1.2's plain scalars, no duplicated keys, lines remembered.

PyYAML resolves scalars by version 1.1, where `3e-7` is text, `on` is a boolean, `010` is eight and `1:30` is ninety.
"""

import re
from typing import Any

import yaml

from grpo.config.tree import Branch, Leaf, Node, plain
from grpo.errors import ConfigError

_BOOL = "tag:yaml.org,2002:bool"
_FLOAT = "tag:yaml.org,2002:float"
_INT = "tag:yaml.org,2002:int"
_NULL = "tag:yaml.org,2002:null"

_TAGS = {_BOOL, _FLOAT, _INT, _NULL} | {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str")}

_SCALARS = (
    (_BOOL, re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    (_INT, re.compile(r"[-+]?(0|[1-9][0-9_]*)"), "-+0123456789"),
    (
        _FLOAT,
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        "-+.0123456789",
    ),
    (_NULL, re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        text = self.construct_scalar(node).replace("_", "").lower()
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


class _Dumper(yaml.SafeDumper):
    """Keeps PyYAML's resolvers too, so that a reader of version 1.1 takes no text of ours for something else."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # PyYAML writes these line breaks as they are, and folds them into spaces when it reads.
    style = '"' if any(one in text for one in "\r\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flow = not any(isinstance(value, dict | list) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)


def _represent_dict(dumper: yaml.SafeDumper, values: dict[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", values, flow_style=not values)


for _tag, _pattern, _first in _SCALARS:
    _whole = re.compile(rf"^(?:{_pattern.pattern})$")
    _Loader.add_implicit_resolver(_tag, _whole, _first)
    if _tag == _FLOAT:
        _Dumper.add_implicit_resolver(_tag, _whole, _first)
_Loader.add_constructor(_FLOAT, _Loader.construct_yaml_float)
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def dump(value: Any) -> str:
    """YAML text that `read` takes back to the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def read(text: str, *, origin: str, lines: bool) -> Node:
    """Parse one YAML document.

    `origin` names the file or override in errors; with `lines` each value's origin is `origin:line`.
    Raises ConfigError for what is not YAML, a duplicated key, a key that is not text, or a tag.
    """
    try:
        loader = _Loader(text)
        document = loader.get_single_node()
        if document is None:
            return Leaf(None, origin)
        return _build(loader, document, origin=origin, lines=lines, above=())
    except RecursionError:
        raise ConfigError(f"{origin}: not YAML: nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{_where(error, origin, lines=lines)}: not YAML: {_problem(error)}") from None
    except ValueError as error:
        raise ConfigError(f"{origin}: not YAML: {error}") from None


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return " ".join(part for part in (error.context, error.problem) if part)
    return str(error).splitlines()[0]


def _where(error: yaml.YAMLError, origin: str, *, lines: bool) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f"{origin}:{mark.line + 1}" if lines and mark is not None else origin


def _build(loader: _Loader, node: yaml.Node, *, origin: str, lines: bool, above: tuple[yaml.Node, ...]) -> Node:
    here = f"{origin}:{node.start_mark.line + 1}" if lines else origin
    if any(node is one for one in above):
        raise ConfigError(f"{here}: a YAML alias that contains itself")
    if node.tag not in _TAGS:
        raise ConfigError(f"{here}: the tag {node.tag} is not allowed")
    if not isinstance(node, yaml.MappingNode):
        return Leaf(_value(loader, node, here, above), here)
    branch = Branch(here)
    first_line: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True) if isinstance(key_node, yaml.ScalarNode) else None
        at = f"{origin}:{line}" if lines else origin
        if not isinstance(key, str):
            raise ConfigError(f"{at}: the key {key_node.value!r} is not text; put it in quotes")
        if key in first_line:
            before = f", first on line {first_line[key]}" if lines else ""
            raise ConfigError(f"{at}: the key {key!r} is given twice{before}")
        first_line[key] = line
        child = _build(loader, value_node, origin=origin, lines=lines, above=(*above, node))
        # The key's line, not the value's: a long text may start on the next one.
        branch.children[key] = Leaf(child.value, at) if isinstance(child, Leaf) else child
        if isinstance(child, Branch):
            child.origin = at
    return branch


def _value(loader: _Loader, node: yaml.Node, here: str, above: tuple[yaml.Node, ...]) -> Any:
    if isinstance(node, yaml.SequenceNode):
        inner = (*above, node)
        return [plain(_build(loader, item, origin=here, lines=False, above=inner)) for item in node.value]
    return loader.construct_object(node, deep=True)
