"""From a prepared run to the parts of the loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import LocalState
from grpo.checkpoint.rng import seed_rng
from grpo.checkpoint.saver import Saver
from grpo.config.schema import Config
from grpo.data.loader import PromptLoader
from grpo.models.dimensions import Dimensions
from grpo.placement.placement import Placement, sleep_until_needed
from grpo.placement.plan import plan_of
from grpo.refit.factory import refits
from grpo.rewards.scoring import Rewards
from grpo.rollout.on_demand import OnDemandSource
from grpo.rollout.replay.source import ReplaySource
from grpo.rollout.scoring import GroupScorer, Scorer, SharedScorer
from grpo.rollout.source import RolloutSource
from grpo.telemetry.environment import describe_node
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.evaluation import Evaluator
from grpo.trainer.parts import Parts, StepObserver
from grpo.trainer.prepare import Prepared, train_sampling, validation_sampling
from grpo.trainer.supported import device_of
from grpo.trainer.throughput import Throughput
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.factory import make_generator, make_streaming_generator
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.groups.reservation import Room, reserved_for
from grpo.workers.policy.factory import started_policy
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.protocol import Generator, LocalGenerator, Policy, StreamingGenerator

_VOLATILE = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache")


@contextmanager
def assembled(
    prepared: Prepared,
    run: RunDirectory,
    rewards: Rewards,
    checkpoints: CheckpointManager | None,
    *,
    observers: tuple[StepObserver, ...] = (),
    say: Callable[[str], None] = lambda _: None,
    before_save: Callable[[], None] = lambda: None,
) -> Iterator[Parts]:
    """Start engine and policy; on leaving, by an exception too, they and their processes are ended."""
    config = prepared.config
    if config.cluster.cpu_threads is not None:
        torch.set_num_threads(config.cluster.cpu_threads)
    seed_rng(config.grpo.seed)
    with ExitStack() as stack:
        times = [time.perf_counter()]
        rooms = stack.enter_context(reserved_for(config))
        times.append(time.perf_counter())
        generator, asynchronous = _generator(prepared, None if rooms is None else rooms.engines)
        stack.callback(generator.shutdown)
        plan = plan_of(config)
        sleep_until_needed(plan, generator)
        times.append(time.perf_counter())
        policy = stack.enter_context(started_policy(config, None if rooms is None else rooms.policy))
        times.append(time.perf_counter())
        ray_s, engine_s, policy_s = (later - earlier for earlier, later in pairwise(times))
        run.write_event("parts_started", ray_s=ray_s, engine_s=engine_s, policy_s=policy_s)
        scorer = SharedScorer(
            Scorer(rewards, prepared.tokenizer, scaling=config.grpo.reward_scaling, shaping=config.grpo.reward_shaping)
        )
        loader = PromptLoader(
            prepared.train.prompts, seed=config.grpo.seed, shuffle=config.data.shuffle,
            max_epochs=config.grpo.max_num_epochs,
        )  # fmt: skip
        ranks = policy if isinstance(policy, PolicyGroup) else LocalState(policy)
        sampling = train_sampling(config, prepared.tokenizer)
        source: RolloutSource
        if asynchronous is None:
            source = OnDemandSource(loader, generator, scorer, sampling, config.grpo)
        else:
            source = ReplaySource(
                loader, asynchronous, scorer, sampling, config.grpo, updates_per_step=updates_per_step(config),
                deadline_s=config.cluster.worker_timeout_s,
            )  # fmt: skip
        stack.callback(source.close)
        refit = refits(config, policy, generator)
        yield Parts(
            policy=policy,
            source=source,
            refit=refit,
            placement=Placement(plan, policy, generator),
            evaluator=_evaluator(prepared, generator, scorer),
            ranks=ranks,
            saver=None
            if checkpoints is None
            else Saver(
                checkpoints,
                ranks,
                in_background=config.checkpointing.async_save,
                timeout_s=config.cluster.worker_timeout_s,
            ),
            run=run,
            timer=PhaseTimer(
                synchronise=torch.cuda.synchronize if device_of(config) == "cuda" and rooms is None else None
            ),
            throughput=Throughput.of(config, Dimensions.of(prepared.model_config), _devices(config, policy, run)),
            observers=observers,
            say=say,
            before_save=before_save,
            measures=(policy.step_metrics, refit.step_metrics),
            rank_seconds=policy.rank_seconds if isinstance(policy, PolicyGroup) else None,
        )


def _devices(config: Config, policy: Policy | PolicyGroup, run: RunDirectory) -> list[str]:
    """The name of each training rank's device as CUDA has it, or "cpu"; the ranks' machines go into the run."""
    names = ["cpu"]
    if isinstance(policy, PolicyGroup):
        names, nodes = policy.describe()
        known = {node["host"]: node for node in (*nodes, describe_node())}
        run.write_nodes(list(known.values()))
    elif device_of(config) == "cuda":
        names = [torch.cuda.get_device_name()]
    return names if device_of(config) == "cuda" else ["cpu"] * len(names)


def _generator(
    prepared: Prepared, room: Room | None
) -> tuple[LocalGenerator | EngineGroup | StreamGroup, StreamingGenerator | None]:
    """The engine, and the same as one that samples while training runs if it does."""
    if not prepared.config.grpo.async_grpo.enabled:
        return make_generator(prepared.config, prepared.model_path, room, weights_from="refit"), None
    streaming = make_streaming_generator(prepared.config, prepared.model_path, room, weights_from="refit")
    return streaming, streaming


def updates_per_step(config: Config) -> int:
    """Optimizer updates of a full step."""
    samples = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    return -(-samples // config.policy.train_global_batch_size)


def checkpoint_manager(prepared: Prepared, run_path: Path) -> CheckpointManager | None:
    """None when `checkpointing.enabled` is false."""
    settings = prepared.config.checkpointing
    if not settings.enabled:
        return None
    described = json.loads(prepared.model_config.to_json_string(use_diff=False))
    model = {key: value for key, value in described.items() if key not in _VOLATILE}
    return CheckpointManager(
        Path(settings.checkpoint_dir) if settings.checkpoint_dir else run_path / "checkpoints",
        keep_latest=settings.keep_latest, keep_top_k=settings.keep_top_k, metric_name=settings.metric_name,
        higher_is_better=settings.higher_is_better, keep_every_n_steps=settings.keep_every_n_steps,
        fingerprint={"model": model},
    )  # fmt: skip


def _evaluator(prepared: Prepared, generator: Generator, scorer: GroupScorer) -> Evaluator | None:
    if prepared.validation is None:
        return None
    grpo = prepared.config.grpo
    return Evaluator(
        prepared.validation.prompts[: grpo.max_val_samples], generator, scorer,
        validation_sampling(prepared.config, prepared.tokenizer), batch_size=grpo.val_batch_size, seed=grpo.seed,
    )  # fmt: skip
