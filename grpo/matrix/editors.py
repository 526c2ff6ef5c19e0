"""JSON Schemas of the files under `matrices/`, for editors that complete and check YAML."""

import copy
import json
from pathlib import Path
from typing import Any

from grpo.config.schema.base import Section
from grpo.matrix.expand import AXES, EXCLUDE
from grpo.matrix.schema import (
    Budgets,
    CaseEntry,
    Family,
    LockedStack,
    Partition,
    Quarantine,
    Reference,
    SuiteEntry,
)

FOLDER = "schema"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def json_schemas() -> dict[str, Schema]:
    """By the file's stem: family, partition, stack, reference, quarantine, budgets."""
    plain: dict[str, type[Section]] = {
        "partition": Partition,
        "stack": LockedStack,
        "reference": Reference,
        "quarantine": Quarantine,
        "budgets": Budgets,
    }
    return {"family": _family(), **{name: _titled(model.model_json_schema(), name) for name, model in plain.items()}}


def write_schemas(folder: Path) -> list[Path]:
    """Write them all below the matrix's folder."""
    written = []
    for name, text in schema_texts().items():
        path = folder / FOLDER / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def schema_texts() -> dict[str, str]:
    return {name: json.dumps(schema, indent=1) + "\n" for name, schema in json_schemas().items()}


def _titled(schema: Schema, name: str) -> Schema:
    return {"$schema": _DIALECT, **schema, "title": f"matrices: {name}"}


def _family() -> Schema:
    """Defaults, an entry and a value of an axis each hold any keys of a case, since together they make it whole."""
    family = Family.model_json_schema()
    keys: Schema = {}
    definitions: Schema = {}
    models: tuple[type[Section], ...] = (SuiteEntry, CaseEntry)
    for model in models:
        schema = model.model_json_schema()
        definitions |= schema.pop("$defs", {})
        keys |= schema["properties"]
    part: Schema = {"type": "object", "properties": keys, "additionalProperties": False}
    entry = copy.deepcopy(part)
    entry["properties"] |= {
        AXES: {
            "type": "object",
            "description": "axis: value: keys of a case that are laid over; the product of all axes is expanded",
            "additionalProperties": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Keys"}},
        },
        EXCLUDE: {
            "type": "object",
            "description": "reason: axis: value; combinations that do not go together",
            "additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    family["$defs"] = {**definitions, "Keys": part, "Case": entry}
    family["properties"]["defaults"] = {"$ref": "#/$defs/Keys"}
    family["properties"]["cases"]["additionalProperties"] = {"$ref": "#/$defs/Case"}
    family["properties"]["cases"]["propertyNames"] = {"pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"}
    return _titled(family, "family")
