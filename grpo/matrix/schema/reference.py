"""`matrices/references/<partition>/<case>.yaml`: what a case is judged against, and where that is from."""

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import Day, SchemaVersion


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
    nodes: list[str] = Field(min_length=1, description="the one node set of these runs")
    commit: str
    image: str | None = Field(description="container image, or null for none")
    stack: Stack
    date: Day
    approved_by: str


class Unmeasured(Section):
    """Nothing yet: the verdict is "not judged", never a pass."""

    kind: Literal["none"]
    owner: str
    date: Day
    reason: str


class Reference(Section):
    schema_version: SchemaVersion
    source: Annotated[Published | Measured | Unmeasured, Field(discriminator="kind")]
    values: dict[str, Figure] = Field({}, description="by metric")
