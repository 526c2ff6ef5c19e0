"""What each rank of a world does in test_resharding.py, and gives back. Importing it imports Megatron-Core."""

import dataclasses
import os
import warnings
from pathlib import Path

import torch
from torch import distributed as dist

from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import RankState, staged_together
from grpo.checkpoint.reading import open_checkpoint
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext
from tests.support.policy import joined, random_batch, tiny_config, tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from grpo.models.megatron.shape import ModelShape
    from grpo.workers.megatron.policy import MegatronPolicy

ADAMW = {"lr": 1e-3, "eps": 1e-6}
UPDATES = 4
DATA_PARALLEL = {
    "distributed": {"use_distributed_optimizer": True},
    "overlapped": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    "replicated": {"use_distributed_optimizer": False},
}
CONTEXTS = {}


def policy_of(model, layout, seed=0):
    """`model`: kind, tied, precision. `layout`: backend, tensor, pipeline, data parallelism of Megatron."""
    warnings.simplefilter("ignore")
    (kind, tied, precision), (backend, tensor, pipeline, data) = model, layout
    weights = tiny_model(kind, tied=tied, seed=seed)
    settings = {"optimizer": {"kwargs": ADAMW}, "precision": precision, "scheduler": {"warmup_steps": 8}}
    if backend == "dtensor":
        config = tiny_config(policy={**settings, "dtensor_cfg": {"tensor_parallel_size": tensor}})
        return DTensorPolicy(weights, config, parallel=_context(config, tensor))
    megatron = {
        "enabled": True, "tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline,
        "distributed_data_parallel_config": DATA_PARALLEL[data],
    }  # fmt: skip
    config = tiny_config(policy={**settings, "megatron_cfg": megatron})
    return MegatronPolicy(ModelShape.of(weights.config), dict(weights.state_dict()), config)


def _context(config, tensor):
    if tensor not in CONTEXTS:
        CONTEXTS[tensor] = ParallelContext.create(config.policy, "cpu")
    return CONTEXTS[tensor]


def manager_of(folder):
    return CheckpointManager(
        Path(folder), keep_latest=99, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )


def gathered(policy):
    """The whole state of a policy on every rank."""
    everyone = [None] * dist.get_world_size()
    own = [dataclasses.replace(piece, data=piece.data.clone()) for piece in policy.state()[0]]
    dist.all_gather_object(everyone, own)
    return joined([piece for each in everyone for piece in each])


def save(state, folder, step, meanwhile):
    """A checkpoint by all ranks of the world, committed by the first; the files that this rank has opened to write.

    `meanwhile` happens when all is staged and nothing is written.
    """
    staged = [None] * dist.get_world_size()
    dist.all_gather_object(staged, state.stage(copy=True))
    meanwhile()
    opened, real = [], os.open

    def noting(path, flags, *rest, **keywords):
        if flags & os.O_CREAT:
            opened.append(Path(path).name)
        return real(path, flags, *rest, **keywords)

    def write(where):
        sent = [where]
        dist.broadcast_object_list(sent, src=0)
        os.open = noting
        try:
            shards = state.write(sent[0], in_background=True)
        finally:
            os.open = real
        written = [None] * dist.get_world_size()
        dist.all_gather_object(written, shards)
        return written

    if dist.get_rank() == 0:
        whole = staged_together(staged)
        manager_of(folder).save_shards(step, write, whole.bytes, whole.values, {})
    else:
        write(None)
    dist.barrier()
    return opened


def load(policy, folder, step, *, optimizer=True):
    with open_checkpoint(Path(folder) / f"step_{step}", {}) as opened:
        state = RankState(policy, dist.get_rank() if dist.is_initialized() else 0, with_rng=True)
        return state.load(opened, optimizer=optimizer)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def interrupted(model, layout, folder, others):
    """What is wrong when a run is resumed after each of its updates, and when other layouts take its last checkpoint.

    Also what each rank has written, and the state that was saved.
    """
    torch.manual_seed(100 + dist.get_rank())
    batches = [random_batch(seed=seed) for seed in range(UPDATES)]
    policy, metrics, draws, writers = policy_of(model, layout), [], [], []
    state = RankState(policy, dist.get_rank(), with_rng=True, max_shard_bytes=30_000)  # of all saves, as in a run

    def update():
        draws.append(torch.rand(3).tolist())
        metrics.append(dict(policy.train(batches[len(metrics)]).metrics))

    update()
    for step in range(1, UPDATES):
        saved = gathered(policy)
        writers = save(state, folder, step, update)
    end, odd = gathered(policy), []
    for step in range(1, UPDATES):
        again = policy_of(model, layout, seed=7)
        again.train(batches[3])  # a used optimizer must not shine through
        untaken = load(again, folder, step)
        resumed, drawn = [], []
        for batch in batches[step:]:
            drawn.append(torch.rand(3).tolist())
            resumed.append(dict(again.train(batch).metrics))
        same = resumed == metrics[step:] and drawn == draws[step:] and equal(gathered(again), end) and not untaken
        odd += [] if same else [f"resumed after {step}: {resumed} {metrics[step:]}"]
    for other in others:
        taken = policy_of(model, other, seed=7)
        load(taken, folder, UPDATES - 1)
        odd += [] if equal(gathered(taken), saved) else [f"taken by {other}"]
        loss = taken.train(batches[-1]).metrics["loss"]
        odd += [] if abs(loss - metrics[-1]["loss"]) < 1e-2 else [f"trained on by {other}: {loss}"]
    return odd, writers, saved if dist.get_rank() == 0 else None


def taken(model, layout, folder, step):
    """The state that a layout of this world has after it has taken a checkpoint, and what it lacked."""
    policy = policy_of(model, layout, seed=7)
    untaken = load(policy, folder, step)
    return gathered(policy), untaken


def run(check):
    """Cells are (name of a function here, its arguments)."""
    name, arguments = check
    return globals()[name](**arguments)
