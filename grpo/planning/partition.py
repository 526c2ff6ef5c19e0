"""What a plan must know of the machines: one small file a partition, each figure with its source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from grpo.errors import ConfigError

PARTITIONS = Path(__file__).parent / "partitions"


@dataclass(frozen=True)
class Figure:
    """A number and where it is from: a datasheet, a measurement, or an assumption that says so."""

    value: float
    source: str


@dataclass(frozen=True)
class Partition:
    """Rates are per GPU and per second, in bytes or operations; sizes are in bytes."""

    name: str
    gpu: str
    gpus_per_node: Figure
    memory_bytes: Figure  # what processes can allocate on one GPU
    process_bytes: Figure  # taken on a GPU by a process before its first tensor
    peak_flops: Figure  # datasheet, dense: the denominator of MFU
    matmul_flops: Figure  # what a model's products reach
    attention_flops: Figure  # what packed causal attention reaches, its masked half not counted
    memory_bandwidth: Figure  # bytes read and written
    host_copy: Figure  # pinned, one direction
    host_memory_bandwidth: Figure  # of a node
    nvlink: Figure  # bus bandwidth of collectives inside a node
    network: Figure  # between nodes
    refit_start_s: Figure  # of a transfer of weights to an engine on the same GPUs, whatever its size
    refit_copy: Figure  # of such a transfer
    refit_broadcast: Figure  # of weights to engines on other GPUs of a node
    engine_step_s: Figure  # of the generation engine, per token step, whatever the number of sequences
    engine_sequence_s: Figure  # per token step and running sequence
    verification_s: Figure  # CPU time of one verified sample

    def figures(self) -> dict[str, Figure]:
        """Every figure by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Figure)}


def partition_names() -> list[str]:
    """Partitions that ship."""
    return sorted(path.stem for path in PARTITIONS.glob("*.yaml"))


def load_partition(name: str) -> Partition:
    """The partition of a shipped name, or of a YAML file of the same keys.

    Raises:
        ConfigError: no such partition or file; a key is missing, unknown or without a source.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else PARTITIONS / f"{name}.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"--partition {name}: there is none of this name; one of {', '.join(partition_names())}, or a YAML file"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    return _partition(path, values)


def _partition(path: Path, values: Any) -> Partition:
    if not isinstance(values, dict) or values.pop("schema_version", None) != 1:
        raise ConfigError(f"{path}: a partition is a mapping with schema_version: 1")
    wanted = {each.name for each in fields(Partition)} - {"name"}
    odd = sorted(wanted ^ set(values))
    if odd:
        kind = "missing" if odd[0] in wanted else "unknown"
        raise ConfigError(f"{path}: {odd[0]} is {kind}; the keys are {', '.join(sorted(wanted))}")
    figures = {key: _figure(path, key, value) for key, value in values.items() if key != "gpu"}
    return Partition(name=path.stem, gpu=str(values["gpu"]), **figures)


def _figure(path: Path, key: str, value: Any) -> Figure:
    if not isinstance(value, dict) or set(value) != {"value", "source"} or not value["source"]:
        raise ConfigError(f"{path}: {key} = {value!r}: expected {{value: NUMBER, source: TEXT}}")
    number = value["value"]
    if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
        raise ConfigError(f"{path}: {key}.value = {number!r}: expected a number above 0")
    return Figure(float(number), str(value["source"]))
