"""`matrices/quarantine.yaml`: cases that run and do not gate, for a while."""

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.matrix.schema.types import Day, SchemaVersion


class Quarantined(Section):
    """One case. Past `until` the tests of the matrix fail."""

    reason: str = Field(min_length=1)
    issue: str = Field(min_length=1, description="number or address of the report")
    owner: str = Field(min_length=1)
    since: Day
    until: Day = Field(description="at most 30 days after `since`, or after the end that was extended")
    extended_from: Day | None = Field(None, description="the first end, where it was extended; once")

    @property
    def sentence(self) -> str:
        """What is said where the case fails and does not gate."""
        return f"quarantined until {self.until}: {self.reason} ({self.issue}, {self.owner})"


class Quarantine(Section):
    schema_version: SchemaVersion
    cases: dict[str, Quarantined] = Field({}, description="by id")
