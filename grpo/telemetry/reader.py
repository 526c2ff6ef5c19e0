"""Reading a run directory back, while the run is still running or years later."""

import json
import socket
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml
from pydantic import ValidationError

from grpo.errors import TelemetryError
from grpo.telemetry.journal import check_schema_version, read_journal, to_float
from grpo.telemetry.manifest import FILE_NAME, Manifest

_CONFIG_VERSION = "# schema_version:"


@dataclass(frozen=True)
class Run:
    """A run as its directory tells it. Metrics hold floats (NaN and infinity included) or None, by name."""

    path: Path
    manifest: Manifest
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]
    samples: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    canary: dict[str, Any] = field(default_factory=dict)  # {}: none was run
    ranks: list[dict[str, Any]] = field(default_factory=list)  # seconds of each rank, one object a step
    discarded: list[dict[str, Any]] = field(default_factory=list)  # metrics of steps that a resume trained again

    @cached_property
    def steps(self) -> list[int]:
        return [record["step"] for record in self.metrics]

    @cached_property
    def metric_names(self) -> list[str]:
        """Every metric of any step, in the order of first appearance."""
        return list(dict.fromkeys(name for record in self.metrics for name in record if name != "step"))

    def column(self, name: str) -> list[float | None]:
        """One metric over all steps; None where a step does not have it."""
        return [record.get(name) for record in self.metrics]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric where it was measured; NaN and infinity included."""
        pairs = [(record["step"], record[name]) for record in self.metrics if record.get(name) is not None]
        return [step for step, _ in pairs], [value for _, value in pairs]

    @cached_property
    def state(self) -> str:
        """The manifest's state, or "killed": it says running, was started on this host, and its process is gone."""
        record = self.manifest
        if record.state != "running" or record.host != socket.gethostname():
            return record.state
        try:
            alive = psutil.Process(record.process_id).create_time() == record.process_started
        except psutil.NoSuchProcess:
            alive = False
        return "running" if alive else "killed"


def read_run(path: str | Path) -> Run:
    """Read a run directory.

    Raises TelemetryError naming the file: no run there, a file that is not what it should be, a newer schema.
    """
    directory = Path(path)
    lines = read_journal(directory / "metrics.jsonl")
    metrics = [{name: to_float(value) for name, value in line.items()} for line in lines]
    return Run(
        path=directory,
        manifest=read_manifest(directory),
        config=_read_config(directory / "config.yaml"),
        metrics=metrics,
        events=read_journal(directory / "events.jsonl"),
        samples=read_journal(directory / "samples.jsonl"),
        environment=_read_object(directory / "environment.json"),
        nodes=_read_object(directory / "nodes.json").get("nodes", []),
        canary=_read_object(directory / "canary.json"),
        ranks=read_journal(directory / "ranks.jsonl"),
        discarded=[
            {name: to_float(value) for name, value in line.items()}
            for line in read_journal(directory / "metrics.discarded.jsonl")
        ],
    )


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`. Raises TelemetryError."""
    path = directory / FILE_NAME
    if not path.is_file():
        raise TelemetryError(f"{directory} is no run directory of grpo: it has no {FILE_NAME}")
    try:
        return Manifest.model_validate(_read_object(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TelemetryError(f"{path}: {key}: {first['msg']}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """The run's configuration as it was resolved; {} where it is missing. Raises TelemetryError."""
    return _read_config(directory / "config.yaml")


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object with a schema version; {} when there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TelemetryError(f"{path}: not JSON ({error})") from error
    except OSError as error:
        raise TelemetryError(f"cannot read {path}: {error.strerror}") from error
    if not isinstance(value, dict):
        raise TelemetryError(f"{path}: not a JSON object but {type(value).__name__}")
    check_schema_version(value, str(path))
    value.pop("schema_version")
    return value


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    if first.startswith(_CONFIG_VERSION):
        check_schema_version({"schema_version": yaml.safe_load(first.removeprefix(_CONFIG_VERSION))}, str(path))
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TelemetryError(f"{path}: not YAML ({error})") from error
    if not isinstance(value, dict):
        raise TelemetryError(f"{path}: not a YAML mapping but {type(value).__name__}")
    return value
