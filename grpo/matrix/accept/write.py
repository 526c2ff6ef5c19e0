"""A reference as the text of its file."""

import json
from typing import Any

from grpo.matrix.schema import Figure, Reference


def reference_yaml(reference: Reference, *, comment: str = "") -> str:
    """YAML that the matrix reads back as the same reference: one line a figure, keys in the schema's order."""
    source = reference.source.model_dump(mode="json")
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"schema_version: {reference.schema_version}", "source:"]
    lines += [f"  {name}: {_flow(value)}" for name, value in source.items()]
    lines += ["values:"] if reference.values else []
    lines += [f"  {metric}: {_figure(figure)}" for metric, figure in reference.values.items()]
    return "\n".join(lines) + "\n"


def _figure(figure: Figure) -> str:
    given = {name: value for name, value in figure.model_dump().items() if value is not None}
    return "{" + ", ".join(f"{name}: {_flow(value)}" for name, value in given.items()) + "}"


def _flow(value: Any) -> str:
    """JSON is YAML, and quotes every text, so that no version reads as a number."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)
