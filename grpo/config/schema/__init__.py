"""The typed configuration. Key names are NeMo-RL's wherever the concept is the same."""

from pydantic import Field

from grpo.config.schema.algorithm import AsyncGrpo, Grpo, LossFn, RewardScaling, RewardShaping
from grpo.config.schema.base import Section
from grpo.config.schema.data import (
    Data,
    Dataset,
    Env,
    FileDataset,
    FunctionDataset,
    HubDataset,
    ReasoningGymDataset,
)
from grpo.config.schema.generation import Generation, ReplayLengths, ValidationSampling, VllmCfg
from grpo.config.schema.policy import (
    DTensorCfg,
    DynamicBatching,
    MegatronCfg,
    Optimizer,
    Policy,
    Schedule,
    SequencePacking,
    Tokenizer,
)
from grpo.config.schema.run import Checkpointing, Cluster, Logger

__all__ = [
    "AsyncGrpo", "Checkpointing", "Cluster", "Config", "DTensorCfg", "Data", "Dataset", "DynamicBatching", "Env",
    "FileDataset", "FunctionDataset", "Generation", "Grpo", "HubDataset", "Logger", "LossFn", "MegatronCfg",
    "Optimizer", "Policy", "ReasoningGymDataset", "ReplayLengths",
    "RewardScaling", "RewardShaping", "Schedule", "Section",
    "SequencePacking", "Tokenizer", "ValidationSampling", "VllmCfg",
]  # fmt: skip


class Config(Section):
    """A whole run."""

    grpo: Grpo = Grpo()
    loss_fn: LossFn = LossFn()
    policy: Policy
    data: Data
    env: dict[str, Env] = Field(description="verifiers by name")
    checkpointing: Checkpointing = Checkpointing()
    logger: Logger = Logger()
    cluster: Cluster = Cluster()
