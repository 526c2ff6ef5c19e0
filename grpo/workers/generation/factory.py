"""The engine that the configuration asks for, where it asks for it."""

from __future__ import annotations

from pathlib import Path

from grpo.config.schema import Config
from grpo.workers.generation.local import make_local_generator
from grpo.workers.generation.remote import RemoteGenerator
from grpo.workers.generation.remote_stream import RemoteStream
from grpo.workers.groups.reservation import Reservation
from grpo.workers.protocol import Generator, StreamingGenerator


def make_generator(config: Config, model_path: Path, reservation: Reservation | None = None) -> Generator:
    """Start the engine of `policy.generation.backend`: in this process, or in its own under `cluster.launcher=ray`.

    Its own runs where `reservation` has rank 0; without one, in a Ray of its own on this machine.

    Raises:
        GenerationError: the engine is not installed or does not start.
        ModelError: the folder cannot be read.
        WorkerError: Ray is not installed, or the process does not start.
    """
    if config.cluster.launcher == "ray":
        return RemoteGenerator(config, model_path, reservation)
    return make_local_generator(config, model_path)


def make_streaming_generator(
    config: Config, model_path: Path, reservation: Reservation | None = None
) -> StreamingGenerator:
    """The same in its own process, sampling while its caller does other things. Raises as `make_generator`."""
    return RemoteStream(config, model_path, reservation)
