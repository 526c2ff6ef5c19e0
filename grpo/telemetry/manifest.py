"""`manifest.json`: what a run is, what became of it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo.telemetry.journal import replace_json

FILE_NAME = "manifest.json"

State = Literal["running", "completed", "stopped", "failed"]


class Resume(BaseModel):
    """One continuation of a run after a stop."""

    time: float = Field(description="seconds since 1970")
    step: int = Field(description="the last step of the checkpoint that it went on from")
    command: list[str]


class Manifest(BaseModel):
    """Fields of `manifest.json`. Keys of a later minor version are kept out of the way, not refused."""

    model_config = ConfigDict(extra="ignore")

    run_id: str
    name: str
    command: list[str] = Field(description="without the values that name a credential")
    started: float = Field(description="seconds since 1970")
    ended: float | None = None
    state: State = "running"
    reason: str | None = Field(None, description="why the run stopped or failed")
    exit_code: int | None = None
    last_step: int | None = Field(None, description="of metrics.jsonl, when the run ended")
    grpo_version: str
    git_commit: str | None = None
    git_dirty: bool | None = None
    host: str
    process_id: int
    process_started: float = Field(description="seconds since 1970; tells a reused process id")
    resumes: list[Resume] = Field(default_factory=list)
    facts: dict[str, Any] = Field(
        default_factory=dict,
        description="what the trainer knows of itself: recipe, model, parameters, device, max_steps, chance, ...",
    )

    def write(self, directory: Path) -> None:
        replace_json(directory / FILE_NAME, self.model_dump(mode="json"))
