"""How many GPUs train, how many generate, and how the training ones are divided."""

from dataclasses import dataclass

from grpo.config.schema import Config


@dataclass(frozen=True)
class Layout:
    """Ranks; those of a CPU run are `cluster.cpu_ranks` and `cluster.cpu_engine_ranks`."""

    training_gpus: int
    generation_gpus: int
    model_parallel_size: int  # ranks that hold one copy of the model
    engine_parallel_size: int  # ranks that are one engine

    @property
    def data_parallel_size(self) -> int:
        return self.training_gpus // self.model_parallel_size

    @property
    def engines(self) -> int:
        """Replicas of the generation engine."""
        return self.generation_gpus // self.engine_parallel_size


def layout(config: Config) -> Layout:
    """The layout of a resolved configuration; sizes that do not divide are for `validate` to refuse."""
    cluster, colocated = config.cluster, config.policy.generation.colocated
    model, engine = model_parallel_size(config), engine_parallel_size(config)
    if cluster.gpus_per_node == 0:
        return Layout(cluster.cpu_ranks, cluster.cpu_engine_ranks or engine, model, engine)
    total = cluster.num_nodes * cluster.gpus_per_node
    if colocated.enabled:
        return Layout(total, total, model, engine)
    resources = colocated.resources
    generation = (resources.num_nodes or 0) * (resources.gpus_per_node or 0)
    return Layout(total - generation, generation, model, engine)


def model_parallel_size(config: Config) -> int:
    """Product of the tensor, pipeline and context parallel sizes of the enabled backend."""
    if config.policy.megatron_cfg.enabled:
        megatron = config.policy.megatron_cfg
        sizes = megatron.tensor_model_parallel_size * megatron.pipeline_model_parallel_size
        return sizes * megatron.context_parallel_size
    return config.policy.dtensor_cfg.tensor_parallel_size * config.policy.dtensor_cfg.context_parallel_size


def engine_parallel_size(config: Config) -> int:
    """Ranks of one generation engine: only vLLM divides a model."""
    generation = config.policy.generation
    return generation.vllm_cfg.tensor_parallel_size if generation.backend == "vllm" else 1


def sequence_divisor(config: Config, *, needed: bool) -> int:
    """What padded sequence lengths must be multiples of.

    Context parallelism cuts a sequence into 2 x size pieces; sequence parallelism shares it over the tensor ranks.
    With `needed` false the tensor parallel size counts even without sequence parallelism, as NeMo-RL's default does.
    """
    policy = config.policy
    if policy.megatron_cfg.enabled:
        tensor, context = policy.megatron_cfg.tensor_model_parallel_size, policy.megatron_cfg.context_parallel_size
        sequence_parallel = policy.megatron_cfg.sequence_parallel
    else:
        tensor, context = policy.dtensor_cfg.tensor_parallel_size, policy.dtensor_cfg.context_parallel_size
        sequence_parallel = policy.dtensor_cfg.sequence_parallel
    pieces = 2 * context if context > 1 else 1
    return pieces * (tensor if sequence_parallel or not needed else 1)
