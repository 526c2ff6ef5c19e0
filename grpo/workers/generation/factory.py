"""The engine that the configuration asks for, where it asks for it."""

from __future__ import annotations

from pathlib import Path

from grpo.config.schema import Config
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.local import make_local_generator
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.groups.reservation import Room
from grpo.workers.protocol import LocalGenerator, WeightsFrom


def make_generator(
    config: Config, model_path: Path, room: Room | None = None, *, weights_from: WeightsFrom = "folder"
) -> LocalGenerator | EngineGroup:
    """Start the engine of `policy.generation.backend`: in this process, or under `cluster.launcher=ray` its replicas.

    Those run in `room`; without one, in a Ray of their own on this machine. With `weights_from="refit"`
    vLLM starts without weights, and samples only after an update.

    Raises:
        GenerationError: the engine is not installed or does not start.
        ModelError: the folder cannot be read.
        WorkerError: Ray is not installed, or a process does not start.
    """
    if config.cluster.launcher == "ray":
        return EngineGroup.start(config, model_path, room, weights_from=weights_from)
    return make_local_generator(config, model_path, weights_from=weights_from)


def make_streaming_generator(
    config: Config, model_path: Path, room: Room | None = None, *, weights_from: WeightsFrom = "folder"
) -> StreamGroup:
    """The replicas in their own processes, sampling while others work; see `make_generator`."""
    return StreamGroup.start(config, model_path, room, weights_from=weights_from)
