"""What the plan says of a measured worker."""

from __future__ import annotations

from benchmarks.gpu.shapes import Shape
from grpo.config.schema import Config
from grpo.models.dimensions import Dimensions
from grpo.planning.memory import worker_memory
from grpo.planning.parallel import training_parallel
from grpo.planning.parameters import model_of
from grpo.planning.partition import load_partition
from grpo.planning.resident import Resident
from grpo.planning.setting import Setting
from grpo.planning.workload import Lengths, step_workload

PARTITION = "h200-141g"
GPU_MEMORY = load_partition(PARTITION).memory_bytes.value
PEAK_FLOPS = load_partition(PARTITION).peak_flops.value


def planned_training_bytes(shape: Shape, config: Config) -> dict[str, float]:
    """Bytes of the worker in training, by what holds them."""
    setting = Setting(
        model=model_of(shape.title, shape.config()),
        config=config,
        parallel=training_parallel(config),
        workload=step_workload(config, Lengths(1, (config.policy.max_total_sequence_length - 1,) * 2), 1),
        partition=load_partition(PARTITION),
        resident=Resident.ALL,
    )
    return worker_memory(setting)["policy_training"]


def dimensions_of(shape: Shape) -> Dimensions:
    return Dimensions.of(shape.config())
