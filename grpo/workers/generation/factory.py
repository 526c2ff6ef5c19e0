"""The engine that the configuration asks for, where it asks for it."""

from __future__ import annotations

from pathlib import Path

from grpo.config.schema import Config
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.local import make_local_generator
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.groups.reservation import Room
from grpo.workers.protocol import LocalGenerator


def make_generator(config: Config, model_path: Path, room: Room | None = None) -> LocalGenerator | EngineGroup:
    """Start the engine of `policy.generation.backend`: in this process, or under `cluster.launcher=ray` its replicas.

    Those run in `room`; without one, in a Ray of their own on this machine.

    Raises:
        GenerationError: the engine is not installed or does not start.
        ModelError: the folder cannot be read.
        WorkerError: Ray is not installed, or a process does not start.
    """
    if config.cluster.launcher == "ray":
        return EngineGroup.start(config, model_path, room)
    return make_local_generator(config, model_path)


def make_streaming_generator(config: Config, model_path: Path, room: Room | None = None) -> StreamGroup:
    """The replicas in their own processes, sampling while others work. Raises as `make_generator`."""
    return StreamGroup.start(config, model_path, room)
