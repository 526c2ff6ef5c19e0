"""`policy.*` without generation: the trained model, its parallelism, batching and optimizer."""

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.schema.base import Section
from grpo.config.schema.generation import Generation

Precision = Literal["float32", "bfloat16"]
PackingAlgorithm = Literal["first_fit_decreasing", "modified_first_fit_decreasing", "balanced"]


class Tokenizer(Section):
    name: str | None = Field(None, description="folder, shipped name or hub id; null: policy.model_name")
    chat_template: str = Field(
        "default", description="'default': the tokenizer's own; 'none': the prompt as it is; else a Jinja file"
    )
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)


class DTensorCfg(Section):
    """The PyTorch backend: FSDP2 and tensor parallelism over DTensor."""

    enabled: bool = True
    tensor_parallel_size: int = Field(1, gt=0)
    context_parallel_size: int = Field(1, gt=0)
    sequence_parallel: bool = False
    activation_checkpointing: bool = False
    cpu_offload: bool = False


class DistributedDataParallelCfg(Section):
    """Megatron-Core's data parallelism. Gradients are summed in float32 whatever the precision."""

    use_distributed_optimizer: bool = Field(
        True, description="masters and optimizer state are shared out over the data parallel ranks"
    )
    overlap_grad_reduce: bool = Field(False, description="sum gradients while the backward pass goes on")
    overlap_param_gather: bool = Field(
        False, description="gather updated parameters while the next forward pass goes on; distributed optimizer only"
    )


class MegatronCfg(Section):
    """The Megatron-Core backend."""

    enabled: bool = False
    tensor_model_parallel_size: int = Field(1, gt=0)
    pipeline_model_parallel_size: int = Field(1, gt=0)
    context_parallel_size: int = Field(1, gt=0)
    sequence_parallel: bool = False
    activation_checkpointing: bool = False
    distributed_data_parallel_config: DistributedDataParallelCfg = DistributedDataParallelCfg()


class DynamicBatching(Section):
    """Micro-batches of similar lengths, padded, under a cap of tokens."""

    enabled: bool = False
    train_mb_tokens: int | None = Field(
        None, gt=0, description="null: max_total_sequence_length x train_micro_batch_size"
    )
    logprob_mb_tokens: int | None = Field(
        None, gt=0, description="null: max_total_sequence_length x logprob_batch_size"
    )
    sequence_length_round: int = Field(64, gt=0, description="pad widths are multiples of this")


class SequencePacking(Section):
    """Several sequences laid end to end in one row, attention kept apart."""

    enabled: bool = False
    train_mb_tokens: int | None = Field(
        None, gt=0, description="null: max_total_sequence_length x train_micro_batch_size"
    )
    logprob_mb_tokens: int | None = Field(
        None, gt=0, description="null: max_total_sequence_length x logprob_batch_size"
    )
    algorithm: PackingAlgorithm = "modified_first_fit_decreasing"


class OptimizerKwargs(Section):
    lr: float = Field(5e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [0.9, 0.999])
    eps: float = Field(1e-8, gt=0)


class Optimizer(Section):
    name: Literal["torch.optim.AdamW"] = "torch.optim.AdamW"
    kwargs: OptimizerKwargs = OptimizerKwargs()


class Schedule(Section):
    """Linear warm-up to the learning rate, then constant, linear or cosine decay to `min_lr_ratio`."""

    warmup_steps: int = Field(0, ge=0, description="optimizer updates")
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: int | None = Field(None, gt=0, description="updates after the warm-up; needed unless constant")
    min_lr_ratio: float = Field(0.0, ge=0, le=1)


class Policy(Section):
    model_name: str = Field(
        description="folder, shipped name (`grpo recipes --models`) or hub id that `grpo fetch` stored"
    )
    model_revision: str | None = Field(
        None, description="commit of the hub repository; null: the one that `grpo fetch` stored"
    )
    random_weights: bool = Field(
        False, description="build the model from its config.json with random weights from grpo.seed"
    )
    tokenizer: Tokenizer = Tokenizer()
    precision: Precision = Field("bfloat16", description="of compute; masters, reductions and optimizer are float32")
    train_global_batch_size: int = Field(512, gt=0, description="sequences in one optimizer update")
    train_micro_batch_size: int = Field(4, gt=0)
    logprob_batch_size: int = Field(4, gt=0)
    logprob_chunk_size: int | None = Field(
        None, gt=0, description="tokens whose logits exist at once; null: chosen by vocabulary"
    )
    max_total_sequence_length: int = Field(512, gt=1)
    max_grad_norm: float | None = Field(1.0, gt=0, description="null: no clipping")
    offload_optimizer_for_logprob: bool = Field(
        False, description="colocated only: optimizer state is in host memory during the log-prob passes"
    )
    offload_reference: bool = Field(
        False, description="colocated only: the reference policy is on the GPU during its own pass alone"
    )
    dtensor_cfg: DTensorCfg = DTensorCfg()
    megatron_cfg: MegatronCfg = MegatronCfg()
    dynamic_batching: DynamicBatching = DynamicBatching()
    sequence_packing: SequencePacking = SequencePacking()
    make_sequence_length_divisible_by: int | None = Field(
        None, gt=0, description="null: what the parallel layout needs"
    )
    optimizer: Optimizer = Optimizer()
    scheduler: Schedule = Schedule()
    generation: Generation = Generation()
