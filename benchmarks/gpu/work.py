"""What is trained on: sequences that fill packs, as a batch of the project and as packs for a loop of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import Packed, plan_micro_batches
from grpo.models.dimensions import Dimensions
from grpo.models.flops import Flops, forward_flops, training_flops

LONGEST = 1365  # tokens of a sequence; with the shortest a fifth of it 819 on average, about what 8B models were run at
PROMPT_SHARE = 6  # the first sixth of a sequence is not trained
CLIP = 0.2


@dataclass(frozen=True)
class Pack:
    """One micro-batch, all of it on the device: sequences end to end in a row of W tokens, N of them trained."""

    input_ids: Tensor  # [1, W] int64
    position_ids: Tensor  # [1, W] int64
    lengths: list[int]
    bounds: Tensor  # [sequences + 1] int32, from 0
    predictors: Tensor  # [N] int64: positions whose hidden state predicts a trained token
    targets: Tensor  # [N] int64
    advantages: Tensor  # [N] float32
    old_logprobs: Tensor  # [N] float32


def random_batch(cap: int, packs: int, vocabulary: int, *, seed: int = 0) -> Batch:
    """Sequences that fill `packs` packs of `cap` tokens to the last token, shuffled."""
    rng = random.Random(seed)  # noqa: S311 (lengths)
    lengths = [each for _ in range(packs) for each in _filling(cap, rng)]
    rng.shuffle(lengths)
    return batch_of([each + 1 for each in lengths], vocabulary, seed=seed)  # a last token is predicted, never seen


def _filling(cap: int, rng: random.Random) -> list[int]:
    longest = min(LONGEST, cap // 3)
    shortest = max(2, longest // 5)
    lengths: list[int] = []
    while (left := cap - sum(lengths)) > longest:
        lengths.append(min(rng.randint(shortest, longest), left - shortest))
    return [*lengths, left]


def batch_of(lengths: Sequence[int], vocabulary: int, *, seed: int = 0) -> Batch:
    """Random tokens, advantages and log-probs near those of a uniform distribution, for sequences of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    mask = torch.cat([torch.arange(each) >= max(1, each // PROMPT_SHARE) for each in lengths])

    def logprobs() -> Tensor:
        return torch.randn(total, generator=generator) * 0.1 - math.log(vocabulary)

    return Batch(
        tokens=torch.randint(0, vocabulary, (total,), generator=generator),
        lengths=torch.tensor(lengths),
        mask=mask,
        generation_logprobs=logprobs(),
        advantages=torch.randn(len(lengths), generator=generator),
        old_logprobs=logprobs(),
    )


def packs_of(batch: Batch, cap: int, device: str) -> list[Pack]:
    """The packs that the worker makes of a batch, laid out by this module's own code."""
    plan = plan_micro_batches([each - 1 for each in batch.lengths.tolist()], Packed(cap))
    return [_pack(batch, each.rows, device) for each in plan]


def _pack(batch: Batch, rows: Sequence[int], device: str) -> Pack:
    tokens = torch.split(batch.tokens, batch.lengths.tolist())
    masks = torch.split(batch.mask, batch.lengths.tolist())
    assert batch.old_logprobs is not None
    assert batch.advantages is not None
    old = torch.split(batch.old_logprobs, batch.lengths.tolist())
    seen = [len(tokens[row]) - 1 for row in rows]
    return Pack(
        input_ids=torch.cat([tokens[row][:-1] for row in rows])[None].to(device),
        position_ids=torch.cat([torch.arange(each) for each in seen])[None].to(device),
        lengths=seen,
        bounds=torch.tensor([0, *seen]).cumsum(0).to(device, torch.int32),
        predictors=torch.cat([masks[row][1:] for row in rows]).nonzero()[:, 0].to(device),
        targets=torch.cat([tokens[row][masks[row]] for row in rows]).to(device),
        advantages=torch.cat([batch.advantages[row].expand(int(masks[row].sum())) for row in rows]).to(device),
        old_logprobs=torch.cat([old[row][masks[row]] for row in rows]).to(device),
    )


def seen_lengths(batch: Batch) -> list[int]:
    """Tokens of each sequence that the model sees."""
    return [each - 1 for each in batch.lengths.tolist()]


def update_flops(dimensions: Dimensions, batch: Batch) -> Flops:
    """Of forward and backward, attention counted by half; see `grpo.models.flops`."""
    return training_flops(dimensions, seen_lengths(batch), int(batch.mask.sum()))


def pass_flops(dimensions: Dimensions, batch: Batch) -> Flops:
    """Of a forward pass."""
    return forward_flops(dimensions, seen_lengths(batch), int(batch.mask.sum()))
