"""Random micro-batches, and option sets in which every pair of values of two options occurs."""

from dataclasses import replace

import torch

from grpo.algorithm.objective import Denominators, TokenValues
from tests.support.pairwise import pairwise

AXES = {
    "kind": ("clipped", "gspo", "cispo"),
    "ratio_clip_c": (None, 1.5),
    "force_on_policy_ratio": (False, True),
    "aggregation": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"),
    "entropy_coef": (0.0, 0.1),
    "kl_penalty": (0.3, 0.0),
    "kl_kind": ("k1", "k2", "k3"),
    "kl_in_loss": (True, False),
    "kl_on_policy_gradient": (True, False),
    "kl_input_clamp": (20.0, None, 0.4),
    "kl_output_clamp": (10.0, None, 0.05),
    "use_correction": (True, False),
    "correction_kind": ("token", "sequence", "tis", "mis", "icepop", "seq-mask-tis"),
}
FIXED = {
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.28,
    "aggregation_norm_length": 7.0,
    "correction_cap": 1.2,
    "correction_min": 0.85,
    "correction_max": 1.15,
}
PER_TOKEN = ("logprobs", "generation_logprobs", "old_logprobs", "reference_logprobs", "entropy")


COVERING = [{**FIXED, **row} for row in pairwise(AXES)]


def options_id(options):
    return "-".join(str(options[name]) for name in AXES)


def random_values(lengths, *, seed=0, dtype=torch.float64, trained=0.75, untrained_sequences=(), on_policy=False):
    """A micro-batch of sequences of these lengths whose ratios, weights and estimates reach every bound of `FIXED`."""
    generator = torch.Generator().manual_seed(seed)
    total, count = sum(lengths), len(lengths)

    def noise(scale):
        return scale * torch.randn(total, generator=generator, dtype=dtype)

    ids = torch.repeat_interleave(torch.arange(count), torch.tensor(lengths))
    mask = torch.rand(total, generator=generator) < trained
    for sequence in untrained_sequences:
        mask[ids == sequence] = False
    logprobs = -0.05 - noise(1.0).abs()
    old = logprobs + noise(0.3)
    return TokenValues(
        logprobs=logprobs.requires_grad_(),
        mask=mask,
        sequence_ids=ids,
        num_sequences=count,
        advantages=torch.randn(count, generator=generator, dtype=dtype),
        generation_logprobs=(logprobs.detach() if on_policy else old.detach()) + noise(0.15),
        old_logprobs=None if on_policy else old.detach(),
        reference_logprobs=logprobs.detach() + noise(0.5),
        entropy=noise(1.0).abs().requires_grad_(),
    )


def denominators_of(values):
    trained = torch.zeros(values.num_sequences).index_add(0, values.sequence_ids, values.mask.float())
    return Denominators(float(values.mask.sum()), float((trained > 0).sum()))


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def select(values, sequences):
    """These sequences alone, in this order, as leaves of their own; also the positions of their tokens."""
    positions = torch.cat([(values.sequence_ids == s).nonzero().squeeze(1) for s in sequences])
    ids = torch.cat(
        [torch.full((int((values.sequence_ids == s).sum()),), i, dtype=torch.int64) for i, s in enumerate(sequences)]
    )
    chosen = {
        name: getattr(values, name)[positions].detach() for name in PER_TOKEN if getattr(values, name) is not None
    }
    chosen["logprobs"] = leaf(chosen["logprobs"])
    chosen["entropy"] = leaf(chosen["entropy"])
    part = replace(
        values, mask=values.mask[positions], sequence_ids=ids, num_sequences=len(sequences),
        advantages=values.advantages[torch.tensor(sequences)], **chosen,
    )  # fmt: skip
    return part, positions
