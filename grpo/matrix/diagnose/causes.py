"""The causes on file, and which of them a run's settings and metrics allow."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.config.tree import Branch
from grpo.config.yaml_format import read
from grpo.errors import MatrixError
from grpo.matrix.strict import build

Plain = bool | int | float | str | None
_OPERATORS = ("not", "above", "below")


class Cause(Section):
    """One thing that usually makes a phase slow."""

    phase: str
    settings: dict[str, Any] = Field({}, description="conditions by dotted key of the configuration")
    metrics: dict[str, Any] = Field({}, description="conditions by metric")
    why: str
    remedy: str
    source: str


class Causes(Section):
    schema_version: Literal[1]
    causes: list[Cause]


@cache
def known_causes() -> tuple[Cause, ...]:
    """Every cause on file. Raises MatrixError for a condition that is none."""
    text = files(__package__).joinpath("causes.yaml").read_text(encoding="utf-8")
    tree = read(text, origin="causes.yaml", lines=True)
    assert isinstance(tree, Branch)
    causes = tuple(build(Causes, tree).causes)
    for cause in causes:
        for name, condition in (cause.settings | cause.metrics).items():
            if isinstance(condition, dict) and (len(condition) != 1 or next(iter(condition)) not in _OPERATORS):
                raise MatrixError(f"causes.yaml: {cause.phase}: {name}: a condition is a value or {_OPERATORS}")
    return causes


def applying(phase: str, config: Mapping[str, Any], metrics: Mapping[str, float]) -> tuple[Cause, ...]:
    """The causes of a phase whose conditions all hold, those with the most conditions first."""
    found = [
        cause
        for cause in known_causes()
        if cause.phase == phase
        and all(holds(condition, setting(config, key)) for key, condition in cause.settings.items())
        and all(holds(condition, metrics.get(name)) for name, condition in cause.metrics.items())
    ]
    return tuple(sorted(found, key=lambda cause: -len(cause.settings) - len(cause.metrics)))


def holds(condition: Any, value: Any) -> bool:
    """Whether a value meets a condition; what is not there, or null, only meets null and `not`."""
    if not isinstance(condition, dict):
        return type(value) is type(condition) and bool(value == condition)
    operator, operand = next(iter(condition.items()))
    if operator == "not":
        return not holds(operand, value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return bool(value > operand) if operator == "above" else bool(value < operand)


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where it is not there."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
