"""A policy, an engine and their placement on a ledger, and the paths that they are led along."""

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.config.schema import Config
from grpo.models.loading import load_model
from grpo.placement.placement import Placement
from grpo.placement.plan import plan_of
from grpo.placement.resources import Residence, Resource
from grpo.refit.local import LocalRefit
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.protocol import SamplingParams
from tests.support.generation import write_model
from tests.support.ledger import PRETEND_GPU, Ledger, adopt_engine, adopt_policy
from tests.support.policy import random_batch

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
        return self.plan == "separate" or self.rollouts == "sync" if not self.offload else self.sharing

    @property
    def sharing(self) -> bool:
        return self.plan == "colocated" and self.rollouts == "sync"

    def __str__(self) -> str:
        return f"{self.rollouts}-{self.plan}-{self.backend}-{self.checkpoint}-{'offload' if self.offload else 'stay'}"


def cells(*backends: str) -> list[Cell]:
    ways = itertools.product(
        ("sync", "async"), ("colocated", "separate"), backends, ("sync", "async"), (False, True)
    )  # fmt: skip
    return [Cell(*each) for each in ways]


def model_folder(folder: Path) -> Path:
    return write_model(
        folder, vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, head_dim=8, num_attention_heads=2,
        num_key_value_heads=1, num_hidden_layers=1, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def config_of(
    folder: Path, *, colocated: bool = True, offloads: dict[str, Any] | None = None, backend: str = "dtensor",
    precision: str = "float32", **policy: Any,
) -> Config:  # fmt: skip
    return Config.model_validate(
        {
            "policy": {
                "model_name": str(folder), "precision": precision, "max_total_sequence_length": 64,
                "dtensor_cfg": {"enabled": backend != "megatron"}, "megatron_cfg": {"enabled": backend == "megatron"},
                "generation": {"backend": "hf", "colocated": {"enabled": colocated, **(offloads or {})}},
                **policy,
            },
            "loss_fn": {"reference_policy_kl_penalty": 0.1},
            "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
            "env": {},
            "cluster": {"gpus_per_node": 0},
        }
    )  # fmt: skip


def cell_config(cell: Cell, folder: Path) -> Config:
    return config_of(
        folder, colocated=cell.plan == "colocated", backend=cell.backend,
        offloads=OFFLOADS if cell.offload else None,
        **({"offload_reference": True} if cell.offload else {}),
    )  # fmt: skip


def make_policy(config: Config, folder: Path, *, parallel: Any = None, device: str = "cpu:0") -> Any:
    model = load_model(folder, dtype=torch.float32)
    if config.policy.megatron_cfg.enabled:
        from grpo.models.megatron.shape import ModelShape
        from grpo.workers.megatron.policy import MegatronPolicy

        source = dict(model.state_dict())
        return MegatronPolicy(ModelShape.of(model.config), source, config, reference=source, device=device)
    from grpo.workers.policy.dtensor import DTensorPolicy

    return DTensorPolicy(model, config, reference=copy.deepcopy(model), device=device, parallel=parallel)


class Bench:
    """Everything but the loop: each work is done in its phase, as the loop does it."""

    def __init__(self, config: Config, folder: Path, ledger: Ledger | None = None, *, parallel: Any = None) -> None:
        self.ledger = ledger
        device = "cpu" if ledger is None else str(PRETEND_GPU)
        self.policy = make_policy(config, folder, parallel=parallel, device=device)
        self.engine = HfGenerator(config, folder)
        if ledger is not None:
            self.memory = adopt_policy(ledger, self.policy)
            self.engine_memory = adopt_engine(ledger, self.engine)
        self.placement = Placement(plan_of(config), self.policy, self.engine)
        self.timer = PhaseTimer(entering=self.placement.enter)
        self.refit_of = LocalRefit(self.policy, self.engine)
        self.saved: dict[str, torch.Tensor] = {}
        self._batches = (random_batch((5, 4, 7), (2, 1, 3), seed=seed) for seed in itertools.count())

    def do(self, phase: str) -> Any:
        with self.timer.step():
            return getattr(self, phase)()

    def logprobs(self) -> torch.Tensor:
        batch = random_batch((5, 4), (2, 1))
        with self.timer.phase("logprobs"):
            self.policy.reference_logprobs(batch)
            return self.policy.logprobs(batch)

    def policy_training(self) -> Any:
        with self.timer.phase("policy_training"):
            return self.policy.train(next(self._batches))

    def refit(self) -> None:
        self.refit_of._delivered = None
        self.refit_of.ensure_current(self.timer)

    def generation(self) -> Any:
        with self.timer.phase("generation"):
            return self.sample()

    def validation(self) -> Any:
        with self.timer.phase("validation"):
            return self.sample()

    def checkpoint(self) -> None:
        """Stage all that is saved, on the host."""
        with self.timer.phase("checkpoint"):
            tensors, _ = self.policy.state()
            self.saved = {name: each.detach().to("cpu", copy=True) for name, each in tensors.items()}

    def sample(self) -> Any:
        return self.engine.generate([[3, 4, 5], [6]], 2, SAMPLING, [1, 2])

    def weights(self) -> dict[str, torch.Tensor]:
        tensors, _ = self.policy.state()
        return {name: each.detach().clone() for name, each in tensors.items()}


def manager(directory: Path) -> CheckpointManager:
    made = CheckpointManager(
        directory, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    made.prepare()
    return made


def every_path(phases: list[str], allowed: set[tuple[str, str]], length: int) -> list[list[str]]:
    """Walks that together have every allowed path of `length` phases in them, each path once.

    The paths of length - 1 are the nodes of a graph, those of `length` its edges: the walks use up the edges.
    """
    def legal(path: tuple[str, ...]) -> bool:
        return all(pair in allowed for pair in itertools.pairwise(path))

    unused = {path for path in itertools.product(phases, repeat=length) if legal(path)}
    walks = []
    while unused:
        path = min(unused)
        unused.remove(path)
        walk = list(path)
        while True:
            onward = [each for each in phases if (*walk[1 - length :], each) in unused]
            if not onward:
                break
            unused.remove((*walk[1 - length :], onward[0]))
            walk.append(onward[0])
        walks.append(walk)
    return walks


def absent(bench: Bench) -> bool:
    return bench.engine.residences()[Resource.ENGINE_WEIGHTS] == Residence.ABSENT
