"""A policy with random weights that can be trained and saved: in this process, or over ranks in workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from grpo.batching.batch import Batch
from grpo.checkpoint.rank_state import LocalState, RankStates
from grpo.config.schema import Config
from grpo.models.sharded_loading import Part, Reader, shape_of_model
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.factory import make_rank
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.policy.rank_policy import RankPolicy

_DEVIATION = 0.02
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Layout:
    """`ranks` are processes of their own unless there is one."""

    device: str
    ranks: int
    backend: str = "dtensor"
    pack_tokens: int = 16384

    @property
    def title(self) -> str:
        where = {"cpu": "the CPU", "cuda": "one GPU" if self.ranks == 1 else "GPUs"}[self.device]
        return f"{self.backend}, {self.ranks} ranks on {where}" if self.ranks > 1 else f"{self.backend} on {where}"


@dataclass(frozen=True)
class Trained:
    """A policy and its state, as the trainer has them."""

    policy: DTensorPolicy | PolicyGroup
    ranks: RankStates

    def train(self, batch: Batch) -> None:
        self.policy.train(batch)
        if isinstance(self.policy, DTensorPolicy) and torch.cuda.is_available():
            torch.cuda.synchronize()


@contextmanager
def trained(shape: LlamaConfig, layout: Layout) -> Iterator[Trained]:
    """The policy, started; its processes end on leaving."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grpo-shape-")))
        shape.save_pretrained(folder)
        config = _config(folder, layout)
        if layout.ranks == 1 and layout.backend == "dtensor":
            builder: Any = AutoModelForCausalLM
            torch.manual_seed(0)
            with torch.device(layout.device):
                built = builder.from_config(shape, dtype=torch.float32)
            policy = DTensorPolicy(built, config, device=layout.device)
            yield Trained(policy, LocalState(policy))
            return
        gpus = layout.ranks if layout.device == "cuda" else 0
        session = stack.enter_context(RaySession(cpus=layout.ranks, gpus=gpus))
        reservation = stack.enter_context(Reservation(session, layout.ranks, gpus_per_worker=min(1, gpus)))
        group = RayGroup(make_measured_rank, [config], reservation=reservation, deadline_s=_START_SECONDS)
        stack.callback(group.shutdown)
        over_ranks = PolicyGroup(group)
        yield Trained(over_ranks, over_ranks)


def make_measured_rank(config: Config) -> RankPolicy:
    """As `grpo.workers.policy.factory.make_rank`, with weights that are drawn where they are to lie: those of a run are
    drawn on the CPU one after another, which takes minutes for 8 billion.
    """
    from grpo.workers.policy import dtensor

    device = "cuda" if config.cluster.gpus_per_node else "cpu"
    with ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(dtensor, "random_weights", lambda folder, _seed: _readers(folder, device))
        )
        if config.policy.megatron_cfg.enabled:
            from grpo.workers.megatron import policy as megatron

            stack.enter_context(mock.patch.object(megatron, "_random", lambda folder, _config: _Drawn(folder, device)))
        return make_rank(config)


class _Drawn(Mapping[str, Tensor]):
    """Weights by name, each drawn when it is asked for."""

    def __init__(self, folder: Path, device: str) -> None:
        self._shapes = {name: each.shape for name, each in shape_of_model(folder).named_parameters()}
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        return _draw(self._shapes[name], self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _readers(folder: Path, device: str) -> Iterator[tuple[str, Reader]]:
    for name, each in shape_of_model(folder).named_parameters():
        yield name, _reader(each, device)


def _reader(parameter: Tensor, device: str) -> Reader:
    def read(part: Part) -> Tensor:
        return _draw(parameter[part].shape, device)

    return read


def _draw(shape: torch.Size, device: str) -> Tensor:
    made = torch.empty(shape, device=device)
    return made.fill_(1.0) if len(shape) == 1 else made.normal_(0.0, _DEVIATION)


def _config(folder: Path, layout: Layout) -> Config:
    backend = {"enabled": True, "activation_checkpointing": layout.ranks > 1}
    key, other = ("dtensor_cfg", "megatron_cfg") if layout.backend == "dtensor" else ("megatron_cfg", "dtensor_cfg")
    on_gpu = layout.device == "cuda"
    return Config.model_validate({
        "policy": {
            "model_name": str(folder), "random_weights": True, "precision": "bfloat16" if on_gpu else "float32",
            "max_total_sequence_length": 1024, "logprob_chunk_size": 2048, key: backend, other: {"enabled": False},
            "sequence_packing": {
                "enabled": True, "train_mb_tokens": layout.pack_tokens, "logprob_mb_tokens": layout.pack_tokens,
            },
        },
        "loss_fn": {"reference_policy_kl_penalty": 0.0, "force_on_policy_ratio": True},
        "cluster": {
            "gpus_per_node": layout.ranks if on_gpu else 0, "cpu_ranks": 1 if on_gpu else layout.ranks,
            "launcher": "ray" if layout.ranks > 1 else "in_process", "cpu_threads": None if on_gpu else
            torch.get_num_threads(),
        },
        "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
        "env": {},
    })  # fmt: skip


def random_batch(tokens: int, length: int) -> Batch:
    """`tokens` or a little fewer, in sequences of one length."""
    rows = max(1, tokens // length)
    length = tokens // rows
    total = rows * length
    mask = torch.ones(total, dtype=torch.bool)
    mask[::length] = False
    return Batch(
        tokens=torch.randint(0, 1000, (total,)), lengths=torch.full((rows,), length), mask=mask,
        generation_logprobs=torch.full((total,), -7.0), advantages=torch.linspace(-1, 1, rows) + 0.1,
        old_logprobs=None, reference_logprobs=None,
    )  # fmt: skip
