"""The JSON Schemas: as fresh as the code, and of one mind with the strict reader."""

import json
from pathlib import Path

import pytest

from grpo.config.tree import plain
from grpo.matrix.editors import json_schemas, schema_texts, write_schemas
from grpo.matrix.load import NO_FAMILIES, read_yaml

DATA = Path(__file__).parents[3] / "matrices"
KINDS = {"partitions": "partition", "stacks": "stack", "references": "reference"}
FILES = sorted(DATA.rglob("*.yaml"))


def kind_of(path):
    top = path.relative_to(DATA).parts[0]
    return KINDS.get(top) or (path.stem if path.name in NO_FAMILIES else "family")


def problems(value, schema, root, where="$"):  # noqa: PLR0911
    """What of a value a schema refuses: the keywords that ours use."""
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, where)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            found = [problems(value, one, root, where) for one in schema[word]]
            return [] if any(not one for one in found) else min(found, key=len)
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
             "null": type(None)}  # fmt: skip
    if "type" in schema and not isinstance(value, types[schema["type"]]):
        return [f"{where}: {value!r} is no {schema['type']}"]
    if "const" in schema and value != schema["const"]:
        return [f"{where}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, list):
        return [
            each
            for n, one in enumerate(value)
            for each in problems(one, schema.get("items", {}), root, f"{where}[{n}]")
        ]
    if not isinstance(value, dict):
        return []
    found = [f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value]
    for key, one in value.items():
        inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
        found += [f"{where}: unknown key {key}"] if inner is False else problems(one, inner, root, f"{where}.{key}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DATA)))
def test_every_file_of_the_matrix_answers_its_schema(path):
    schema = json_schemas()[kind_of(path)]
    assert problems(plain(read_yaml(path)), schema, schema) == []


def test_what_the_reader_refuses_the_schema_refuses():
    schema = json_schemas()["family"]
    family = {"schema_version": 1, "layer": "unit", "cases": {"a": {"axes": {"x": {"y": {"step": 3}}}}}}
    assert problems(family, schema, schema) == ["$.cases.a.axes.x.y: unknown key step"]
    partition = json_schemas()["partition"]
    assert any("slurm" in one for one in problems({"slurm": {"acount": "x"}}, partition, partition))


def test_the_committed_schemas_are_fresh(tmp_path):
    written = {path.name: path.read_text() for path in write_schemas(tmp_path)}
    committed = {path.name: path.read_text() for path in (DATA / "schema").glob("*.json")}
    assert written == committed, "run: nox -s matrix -- schema"
    assert set(schema_texts()) == set(json_schemas())
    assert all(json.loads(text)["$schema"] for text in written.values())
