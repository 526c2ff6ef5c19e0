"""What every estimate of a plan starts from."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.config.schema import Config
from grpo.placement.table import Plan as PlacementPlan
from grpo.planning.parallel import Parallel
from grpo.planning.parameters import Model
from grpo.planning.partition import Partition
from grpo.planning.resident import Resident, placement_of
from grpo.planning.workload import Workload

FLOAT32 = 4
COMPUTE_BYTES = {"bfloat16": 2, "float32": FLOAT32}


@dataclass(frozen=True)
class Setting:
    """A resolved configuration, and what has been worked out of it."""

    model: Model
    config: Config
    parallel: Parallel
    workload: Workload
    partition: Partition
    resident: Resident

    @property
    def compute_bytes(self) -> int:
        """Of an element in compute."""
        return COMPUTE_BYTES[self.config.policy.precision]

    @property
    def colocated(self) -> bool:
        """Whether trainer and engine share GPUs."""
        return self.config.policy.generation.colocated.enabled

    @property
    def placement(self) -> PlacementPlan:
        """Where policy and engine are in each phase."""
        return placement_of(self.config, self.resident)

    @property
    def engine_tensor(self) -> int:
        """Tensor parallel size of an engine."""
        return self.config.policy.generation.vllm_cfg.tensor_parallel_size

    @property
    def last_stage(self) -> int:
        return self.parallel.pipeline - 1
