"""`policy.generation.*`: the engine that samples completions."""

from typing import Literal

from pydantic import Field

from grpo.config.schema.base import Section


class VllmCfg(Section):
    tensor_parallel_size: int = Field(1, gt=0)
    gpu_memory_utilization: float = Field(0.6, gt=0, le=1)
    max_model_len: int | None = Field(None, gt=0, description="null: policy.max_total_sequence_length")
    enforce_eager: bool = False
    torch_compile: bool = Field(
        True,
        description="false: CUDA graphs of vLLM's own kernels, for decoding alone; the engine starts sooner",
    )
    kv_cache_memory_bytes: int | None = Field(
        None, gt=0, description="fixed KV cache size; null: by gpu_memory_utilization"
    )
    max_num_seqs: int | None = Field(
        None,
        gt=0,
        description="sequences decoded together; null: on a GPU those of a step (async: and of the steps ahead), "
        "256 to 1024; on a CPU the engine's default",
    )


class ColocatedResources(Section):
    gpus_per_node: int | None = Field(
        None, gt=0, description="of one node: the engine's share; null with several nodes: all"
    )
    num_nodes: int | None = Field(None, gt=0, description="whole nodes; null with one node: 1")


class Colocated(Section):
    """Whether policy and engine share GPUs and what they give up to each other; if not, what the engine gets."""

    enabled: bool = True
    resources: ColocatedResources = ColocatedResources()
    offload_optimizer: bool = Field(
        False,
        description="from refit to log-probs, optimizer state is in host memory and gradients are freed",
    )
    offload_parameters: bool = Field(False, description="while the engine generates, parameters are in host memory")
    sleep_level: Literal[0, 1, 2] = Field(
        0,
        description="what the engine gives up while the policy works: 0 nothing, 1 the KV cache, with its weights in "
        "host memory, 2 both, the weights coming back with the refit",
    )


class ValidationSampling(Section):
    """Sampling of validation completions. Temperature 0 is greedy."""

    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, gt=0)
    max_new_tokens: int | None = Field(None, gt=0, description="null: policy.generation.max_new_tokens")


class ReplayLengths(Section):
    """Completion lengths that are drawn from a distribution, whatever the model says: for measuring speed."""

    file: str | None = Field(None, description="recorded by another run: its directory, or the lengths.jsonl in it")
    mean: float | None = Field(None, ge=1, description="instead of a file: tokens, of a Weibull distribution")
    shape: float | None = Field(
        1.0, gt=0, description="of that: 1 is the exponential one, below 1 the tail is heavier; null: all have the mean"
    )


class Refit(Section):
    """How new weights travel to engines in processes of their own."""

    bucket_bytes: int = Field(
        256 << 20, gt=0, description="sent at a time, or as much as the largest tensor has; there are two such buffers"
    )
    checksum: Literal["full", "sampled", "off"] = Field(
        "sampled",
        description="whether what arrives is held against what was sent: every bucket, one in eight, or none",
    )


class Generation(Section):
    backend: Literal["vllm", "hf"] = "vllm"
    max_new_tokens: int | None = Field(None, gt=0, description="null: policy.max_total_sequence_length")
    min_new_tokens: int = Field(
        0, ge=0, description="end of sequence is not sampled before this many; benchmarks pin lengths with it"
    )
    replay_lengths: ReplayLengths = ReplayLengths()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop_token_ids: list[int] | None = Field(None, description="besides the tokenizer's end of sequence")
    stop_strings: list[str] | None = None
    validation: ValidationSampling = ValidationSampling()
    vllm_cfg: VllmCfg = VllmCfg()
    colocated: Colocated = Colocated()
    refit: Refit = Refit()
