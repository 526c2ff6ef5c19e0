"""What is placed, and where it can be. Workers and the placement table share these names."""

from enum import StrEnum
from typing import Literal


class Resource(StrEnum):
    """What takes GPU memory between two calls of a worker."""

    POLICY_PARAMETERS = "policy_parameters"  # those that forward passes and exports read
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"  # moments, and float32 masters where they are apart from the parameters
    REFERENCE_PARAMETERS = "reference_parameters"
    ENGINE_WEIGHTS = "engine_weights"
    ENGINE_KV_CACHE = "engine_kv_cache"


POLICY = (
    Resource.POLICY_PARAMETERS,
    Resource.GRADIENTS,
    Resource.OPTIMIZER_STATE,
    Resource.REFERENCE_PARAMETERS,
)
ENGINE = (Resource.ENGINE_WEIGHTS, Resource.ENGINE_KV_CACHE)

EngineTag = Literal["weights", "kv_cache"]  # of what an engine wakes, in vLLM's words


class Residence(StrEnum):
    """Where a resource is. In a run on the CPU `gpu` is the device that computes, the CPU."""

    GPU = "gpu"
    CPU = "cpu"
    ABSENT = "absent"  # nowhere: it is made anew, or arrives with a refit
