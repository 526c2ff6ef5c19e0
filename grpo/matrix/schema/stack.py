"""`matrices/stacks/<name>.yaml`: a locked set of versions that cases run on."""

from typing import Literal

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import SchemaVersion


class LockedStack(Section):
    schema_version: SchemaVersion
    description: str
    accelerator: Literal["cpu", "cuda"]
    lock: str | None = Field(description="the hashed lock; null: the newest versions that fit, resolved when it runs")
    extras: list[str] = Field(description="of this package, that the lock was made from")
    python: list[str] = Field(min_length=1, description="versions, the default first; nightly runs all of them")
    reports_only: bool = Field(False, description="a failure on it is told and does not gate")
    versions: dict[str, str] = Field({}, description="of the lock, written by `nox -s lock`")
