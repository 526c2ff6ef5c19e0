"""How one rank takes part in a pass over a batch. Every rank has the whole batch and works the same plan out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.batching.micro_batches import MicroBatch, Planning, padding_efficiency, plan_micro_batches
from grpo.batching.sharding import plan_ranks, sequence_work


@dataclass(frozen=True)
class Ranks:
    """One rank among those that share a batch, and what a sequence costs it."""

    rank: int = 0
    size: int = 1
    parameters: int = 1  # see `sequence_work`
    attention_width: int = 1


@dataclass(frozen=True)
class BatchPlan:
    micro_batches: list[MicroBatch]  # of this rank, dummies among them
    places: list[int]  # of this rank's sequences, in order, among all that have trained tokens; -1: a dummy's
    sequences: int  # with trained tokens, on all ranks
    efficiency: float  # real tokens over computed ones, on all ranks


def plan_batch(needed: Sequence[int], how: Planning, ranks: Ranks) -> BatchPlan:
    """Micro-batches of the sequences that have trained tokens; `needed` is `needed_lengths` of the whole batch."""
    rows = [row for row, length in enumerate(needed) if length]
    lengths = [needed[row] for row in rows]
    if ranks.size == 1 or not rows:
        plans = [plan_micro_batches(lengths, how)]
    else:
        work = [
            sequence_work(each, parameters=ranks.parameters, attention_width=ranks.attention_width) for each in lengths
        ]
        plans = plan_ranks(lengths, work, how, ranks.size)
    mine = plans[ranks.rank if rows else 0]
    renamed = [MicroBatch([rows[i] for i in each.rows], each.width, each.computed_tokens) for each in mine]
    efficiency = padding_efficiency(lengths, [each for plan in plans for each in plan])
    places = [i for each in mine for i in (each.rows or [-1])]
    return BatchPlan(renamed, places, len(rows), efficiency)
