"""A policy, an engine and their placement on a ledger, and the paths that they are led along."""

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from grpo.checkpoint import staging
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import PREFIX, LocalState
from grpo.checkpoint.saver import Saver
from grpo.checkpoint.shards import plan_shards
from grpo.config.schema import Config
from grpo.models.loading import load_model
from grpo.placement.placement import Placement
from grpo.placement.plan import plan_of
from grpo.placement.resources import Resource
from grpo.refit.local import LocalRefit
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.offload.memory import DeviceMemory
from grpo.workers.protocol import SamplingParams
from tests.support.generation import write_model
from tests.support.ledger import PRETEND_GPU, Ledger, adopt_engine, adopt_policy, misplace
from tests.support.policy import joined, random_batch

VOCABULARY = 37
SAMPLING = SamplingParams(max_new_tokens=3)
OFFLOADS = {"offload_optimizer": True, "offload_parameters": True, "sleep_level": 2}


@dataclass(frozen=True)
class Cell:
    rollouts: str = "sync"
    plan: str = "colocated"
    backend: str = "dtensor"
    checkpoint: str = "sync"
    offload: bool = False

    @property
    def legal(self) -> bool:
        if self.plan == "separate":
            return not self.offload
        return self.rollouts == "sync"

    def __str__(self) -> str:
        return f"{self.rollouts}-{self.plan}-{self.backend}-{self.checkpoint}-{'offload' if self.offload else 'stay'}"


def cells(*backends: str) -> list[Cell]:
    ways = itertools.product(("sync", "async"), ("colocated", "separate"), backends, ("sync", "async"), (False, True))
    return [Cell(*each) for each in ways]


def model_folder(folder: Path) -> Path:
    return write_model(
        folder, vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, head_dim=8, num_attention_heads=2,
        num_key_value_heads=1, num_hidden_layers=1, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def config_of(
    folder: Path, *, colocated: bool = True, offloads: dict[str, Any] | None = None, backend: str = "dtensor",
    precision: str = "float32", gpus: int = 0, **policy: Any,
) -> Config:  # fmt: skip
    return Config.model_validate(
        {
            "policy": {
                "model_name": str(folder), "precision": precision, "max_total_sequence_length": 64,
                "dtensor_cfg": {"enabled": backend == "dtensor"}, "megatron_cfg": {"enabled": backend == "megatron"},
                "generation": {"backend": "hf", "colocated": {"enabled": colocated, **(offloads or {})}},
                **policy,
            },
            "loss_fn": {"reference_policy_kl_penalty": 0.1},
            "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
            "env": {},
            "cluster": {"gpus_per_node": gpus},
        }
    )  # fmt: skip


def cell_config(cell: Cell, folder: Path) -> Config:
    return config_of(
        folder, colocated=cell.plan == "colocated", backend=cell.backend, offloads=OFFLOADS if cell.offload else None,
        **({"offload_reference": True} if cell.offload else {}),
    )  # fmt: skip


def make_policy(config: Config, folder: Path, *, device: str) -> Any:
    """In a process group that is not Megatron's the DTensor policy is sharded over its one rank."""
    model = load_model(folder, dtype=torch.float32)
    for parameter in model.parameters():  # a mapped file cannot be freed
        parameter.data = parameter.data.clone()
    if config.policy.megatron_cfg.enabled:
        from grpo.models.megatron.shape import ModelShape
        from grpo.workers.megatron.policy import MegatronPolicy

        source = dict(model.state_dict())
        return MegatronPolicy(ModelShape.of(model.config), source, config, reference=source, device=device)
    from grpo.workers.policy.dtensor import DTensorPolicy
    from grpo.workers.policy.parallel import ParallelContext

    parallel = None
    if dist.is_initialized():
        parallel = ParallelContext(
            init_device_mesh(torch.device(device).type, (1, 1), mesh_dim_names=("dp", "tp")), sequence_parallel=False
        )
    return DTensorPolicy(model, config, reference=copy.deepcopy(model), device=device, parallel=parallel)


class Bench:
    """Everything but the loop: each work is done in its phase, as the loop does it."""

    def __init__(
        self, config: Config, folder: Path, ledger: Ledger | None = None, *, memory: DeviceMemory | None = None
    ) -> None:
        """On the ledger if there is one; or with the policy's tensors moved by `memory`; or with nothing moved."""
        real = "cuda" if config.cluster.gpus_per_node else "cpu"
        self.policy = make_policy(config, folder, device=real if ledger is None else str(PRETEND_GPU))
        self.engine = HfGenerator(config, folder)
        if ledger is not None:
            self.ledger = ledger
            self.memory, self.engine_memory = adopt_policy(ledger, self.policy), adopt_engine(ledger, self.engine)
        elif memory is not None:
            self.policy.resources.memory = self.engine.memory = memory
        self.placement = Placement(plan_of(config), self.policy, self.engine)
        self.timer = PhaseTimer(entering=self.placement.enter)
        self.delivery = LocalRefit(self.policy, self.engine)
        self.staged: dict[str, Tensor] = {}
        self._buffers = staging.StagingBuffers()
        self._seeds = itertools.count()

    def do(self, phase: str) -> Any:
        with self.timer.step():
            return getattr(self, phase)()

    def follow(self, *path: str) -> None:
        for phase in path:
            self.do(phase)

    def logprobs(self) -> Tensor:
        batch = random_batch((5, 4), (2, 1))
        with self.timer.phase("logprobs"):
            return torch.stack([self.policy.reference_logprobs(batch), self.policy.logprobs(batch)])

    def policy_training(self) -> Any:
        batch = random_batch((5, 4, 7), (2, 1, 3), seed=next(self._seeds))
        with self.timer.phase("policy_training"):
            return self.policy.train(batch)

    def refit(self) -> None:
        self.delivery._delivered = None
        self.delivery.ensure_current(self.timer)

    def generation(self) -> Any:
        with self.timer.phase("generation"):
            return self.sample()

    def checkpoint(self) -> None:
        """Stage all that is saved, on the host."""
        with self.timer.phase("checkpoint"):
            plan = plan_shards(self.policy.state()[0])
            content = self._buffers.stage(plan)
        copies = [
            dataclasses.replace(piece, data=copy)
            for file, pieces in plan.shards.items()
            for piece, copy in zip(pieces, staging._views(content[file], pieces), strict=True)
        ]
        self.staged = joined(copies)

    def sample(self) -> Any:
        return self.engine.generate([[3, 4, 5], [6]], 2, SAMPLING, [1, 2])

    def source_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of the rollouts."""
        return {}, {}

    def weights(self) -> dict[str, Tensor]:
        """All that a resume needs, as it is now."""
        self.do("checkpoint")
        return self.staged


def run_cell(cell: Cell, folder: Path, directory: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train, save, train, refit, generate, train; what the checkpoint holds, and the state in the end.

    An asynchronous cell has a collector and an engine at work from before the first update until the end.
    """
    with Ledger() as ledger, bench_of(cell, folder, ledger) as bench:
        asynchronous = cell.rollouts == "async"
        bench.follow("refit", *(["generation"] if asynchronous else []), "logprobs", "policy_training")
        saver = Saver(checkpoints(directory), LocalState(bench.policy), in_background=cell.checkpoint == "async")
        tensors, values = bench.source_state()
        with bench.timer.step(), bench.timer.phase("checkpoint"):
            saver.stage(tensors, {"step": 1, "source": values})
            saver.write(1, {})
        bench.follow("logprobs", "policy_training", "refit", "generation", "logprobs", "policy_training")
        saver.wait()
        loaded = saver.manager.load_latest().loaded
        assert loaded is not None
        assert not asynchronous or "buffer" in loaded.values["source"]
        saved = {name.removeprefix(PREFIX): each for name, each in loaded.tensors.items() if name.startswith(PREFIX)}
        return saved, bench.weights()


def bench_of(cell: Cell, folder: Path, ledger: Ledger) -> Any:
    """A context that gives the bench of a cell."""
    config = cell_config(cell, folder)
    if cell.rollouts == "sync":
        return contextlib.nullcontext(Bench(config, folder, ledger))
    from tests.support.replay_bench import ReplayBench

    return ReplayBench(config, folder, ledger)


def states_of_training(config: Config, folder: Path, updates: int) -> list[dict[str, Tensor]]:
    """The state after each of so many updates, with nothing else done and nothing moved."""
    bench, states = Bench(config, folder), []
    for _ in range(updates):
        bench.do("policy_training")
        states.append(bench.weights())
    return states


def walk(config: Config, folder: Path, walks: list[list[str]], ledger: Ledger | None, **how: Any) -> tuple[Bench, int]:
    """One bench led along all walks, one after the other; the updates that it made."""
    with ledger or contextlib.nullcontext():
        bench = Bench(config, folder, ledger, **how)
        for path in walks:
            bench.do("refit")
            for phase in path:
                bench.do(phase)
    return bench, sum(path.count("policy_training") for path in walks)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in other)


def checkpoints(directory: Path) -> CheckpointManager:
    manager = CheckpointManager(
        directory, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    manager.prepare()
    return manager


FAULTS = ("optimizer", "staging", "export", "reference")


def inject(bench: Bench, where: str, residence: str) -> None:
    """Have a piece of the policy's code move what it works with, as though it were its business."""
    policy = bench.policy
    place, name, resource = {
        "optimizer": (getattr(policy, "_trained", None) or policy._optimizer, "clip", Resource.OPTIMIZER_STATE),
        "staging": (policy, "state", Resource.OPTIMIZER_STATE),
        "export": (policy, "export_weights", Resource.POLICY_PARAMETERS),
        "reference": (policy, "reference_logprobs", Resource.REFERENCE_PARAMETERS),
    }[where]
    original = getattr(place, name)

    def faulty(*args: Any) -> Any:
        if where == "reference":
            misplace(bench.ledger, policy, resource, residence)
            return original(*args)
        result = original(*args)
        if where == "export":
            result = iter(list(result))
        misplace(bench.ledger, policy, resource, residence)
        return result

    setattr(place, name, faulty)


def every_path(phases: Sequence[str], allowed: Callable[[str, str], bool], length: int) -> list[list[str]]:
    """Walks that together have every allowed path of `length` phases in them, each path once.

    The paths of length - 1 are the nodes of a graph, those of `length` its edges: the walks use up the edges.
    """
    unused = {
        path
        for path in itertools.product(phases, repeat=length)
        if all(allowed(*pair) for pair in itertools.pairwise(path))
    }
    walks = []
    while unused:
        walk = list(min(unused))
        unused.remove(tuple(walk))
        while onward := [each for each in phases if (*walk[1 - length :], each) in unused]:
            walk.append(onward[0])
            unused.remove(tuple(walk[-length:]))
        walks.append(walk)
    return walks
