"""`matrices/references/<partition>/<case>.yaml`: what a case is judged against, and where that is from."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import Day

REFERENCE_VERSION: Literal[2] = 2


def _current(version: Any) -> Any:
    # Version 1 is version 2 but for the nodes of its runs, see `_node_sets`.
    return REFERENCE_VERSION if version == 1 and not isinstance(version, bool) else version


def _node_sets(value: Any) -> Any:
    # Version 1 named the one node set of all runs.
    one_set = isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    return [value] if one_set else value


class Stack(Section):
    """Versions that the figures depend on; null: not recorded."""

    torch: str | None = None
    vllm: str | None = None
    megatron_core: str | None = None
    cuda: str | None = None
    driver: str | None = None


class Figure(Section):
    """One value. Bounds follow from the rules of the judge; given here, they replace them."""

    value: float
    unit: str
    lower: float | None = None
    upper: float | None = None
    spread: float | None = Field(None, ge=0, description="(max - min) / median over the runs; measured references only")
    anchor: float | None = Field(None, gt=0, description="the first accepted value; null: this one is the first")


class Published(Section):
    """Somebody else's figures: whole seconds, no spread, few columns."""

    kind: Literal["published"]
    title: str
    settings: str
    stack: Stack = Stack()


class Measured(Section):
    """The project's own."""

    kind: Literal["measured"]
    runs: list[str] = Field(min_length=1, description="run ids")
    nodes: Annotated[list[list[str]], BeforeValidator(_node_sets)] = Field(
        min_length=1, description="the node set of each run, in their order; one alone is that of all"
    )
    commit: str
    image: str | None = Field(description="container image, or null for none")
    stack: Stack
    date: Day
    approved_by: str | None = Field(None, description="who approved of a drift beyond 10 % from the anchor")


class Unmeasured(Section):
    """Nothing yet: the verdict is "not judged", never a pass."""

    kind: Literal["none"]
    owner: str
    date: Day
    reason: str


class Reference(Section):
    schema_version: Annotated[Literal[2], BeforeValidator(_current)]
    source: Annotated[Published | Measured | Unmeasured, Field(discriminator="kind")]
    values: dict[str, Figure] = Field({}, description="by metric")
