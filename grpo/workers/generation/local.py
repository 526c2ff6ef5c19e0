"""The engine that the configuration asks for, in this process."""

from __future__ import annotations

from pathlib import Path

from grpo.config.schema import Config
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.protocol import WeightsFrom


def make_local_generator(
    config: Config, model_path: Path, *, weights_from: WeightsFrom = "folder"
) -> VllmGenerator | HfGenerator:
    """Start the engine of `policy.generation.backend` on the weights of `model_path`.

    With `weights_from="refit"` vLLM starts without their values.

    Raises:
        GenerationError: the engine is not installed or does not start.
        ModelError: the folder cannot be read.
    """
    if config.policy.generation.backend == "vllm":
        return VllmGenerator(config, model_path, weights_from=weights_from)
    return HfGenerator(config, model_path)
