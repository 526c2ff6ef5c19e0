"""What one case stands for: its whole trainer configuration, its ranks and what it may cost."""

from dataclasses import dataclass

from grpo.config import Config, ResolvedConfig, layout, load_config
from grpo.errors import ConfigError, MatrixError
from grpo.matrix.judge.steps import LEAST_STEPS
from grpo.matrix.schema import Case, Parallel, Suite
from grpo.matrix.schema.types import seconds_of


@dataclass(frozen=True)
class ResolvedCase:
    """A case and the configuration that its job trains with."""

    case: Case
    resolved: ResolvedConfig

    @property
    def config(self) -> Config:
        return self.resolved.config


def overrides_of(case: Case) -> list[str]:
    """The case's overrides, and what its own fields say: steps, nodes and GPUs."""
    return [
        *case.overrides,
        f"grpo.max_num_steps={case.steps}",
        f"cluster.num_nodes={case.nodes}",
        f"cluster.gpus_per_node={case.gpus_per_node}",
    ]


def resolve_case(case: Case) -> ResolvedCase:
    """Resolve the case's recipe. Raises MatrixError naming the case where that fails or its degrees do not hold."""
    try:
        resolved = load_config(case.recipe, overrides_of(case))
    except ConfigError as error:
        raise MatrixError(f"case {case.id}: {error}") from None
    found = parallel_of(resolved.config)
    if found != case.parallel:
        raise MatrixError(
            f"case {case.id}: parallel says {_words(case.parallel)}, but its configuration has {_words(found)}"
        )
    _check_warmup(case, resolved.config)
    _check_interruption(case, resolved.config)
    return ResolvedCase(case, resolved)


def parallel_of(config: Config) -> Parallel:
    """The degrees of parallelism of a resolved configuration."""
    policy = config.policy
    megatron, dtensor = policy.megatron_cfg, policy.dtensor_cfg
    return Parallel(
        tensor=megatron.tensor_model_parallel_size if megatron.enabled else dtensor.tensor_parallel_size,
        pipeline=megatron.pipeline_model_parallel_size if megatron.enabled else 1,
        context=megatron.context_parallel_size if megatron.enabled else dtensor.context_parallel_size,
        data=layout(config).data_parallel_size,
        engine_tensor=policy.generation.vllm_cfg.tensor_parallel_size,
    )


def hours_of(case: Case | Suite) -> tuple[float, float]:
    """GPU-hours, or node-hours where there are no GPUs, that a run on each of the case's partitions may take."""
    hours = seconds_of(case.time_limit) / 3600 * len(case.partitions)
    nodes = case.nodes if isinstance(case, Case) else 1
    return (hours * case.gpus, 0.0) if case.gpus else (0.0, hours * nodes)


def _check_warmup(case: Case, config: Config) -> None:
    generation = config.policy.generation
    graphs = case.gpus > 0 and generation.backend == "vllm" and not generation.vllm_cfg.enforce_eager
    needed = 10 if graphs else 5
    if case.min_steps is not None and case.min_steps < LEAST_STEPS:
        needed = 1  # its reference is provisional, and gates nothing
    if case.checks.against_reference and case.warmup_steps < needed:
        why = "the engine records CUDA graphs" if graphs else "figures are judged"
        raise MatrixError(f"case {case.id}: warmup_steps = {case.warmup_steps}: at least {needed}, since {why}")


def _check_interruption(case: Case, config: Config) -> None:
    """The kill must come after a checkpoint and before the next, or no step would be trained twice."""
    if case.interrupted is None:
        return
    killed, saving = case.interrupted.after_step, config.checkpointing
    if not saving.enabled:
        raise MatrixError(f"case {case.id}: interrupted: it has no checkpoints to go on from (checkpointing.enabled)")
    if killed <= saving.save_period or killed % saving.save_period == 0 or killed + 1 >= case.steps:
        raise MatrixError(
            f"case {case.id}: interrupted.after_step = {killed}: with checkpointing.save_period={saving.save_period} "
            f"and {case.steps} steps it must lie after the first checkpoint, between two, and two before the end"
        )


def _words(parallel: Parallel) -> str:
    return ", ".join(f"{name} {value}" for name, value in parallel.model_dump().items())
