"""The cells of the parity matrix, what every rank does in one, and what it must come to."""

from functools import cache

import torch

from grpo.batching.batch import Batch
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext
from tests.support.policy import VOCABULARY, tiny_config, tiny_model
from tests.support.reference_policy import OPTIONS, ReferencePolicy
from tests.unit.algorithm.cases import pairwise

ADAM = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
MAX_NORM = 0.5
UPDATES = 3
EXTRAS = {
    "plain": {},
    "kl and entropy": {"kl_penalty": 0.3, "entropy_coef": 0.1},
    "tis": {"use_correction": True, "correction_kind": "tis"},
    "on policy": {"force_on_policy_ratio": True, "use_correction": True, "correction_kind": "seq-mask-tis"},
}
# One long sequence against many short ones (fault e1); fewer sequences than ranks; one without trained tokens.
BATCHES = {
    "skewed": ((13, 3, 5, 9, 2, 7, 4, 11, 6), (2, 1, 2, 4, 1, 3, 4, 5, 2), (6,)),
    "few": ((12, 3, 5), (4, 1, 2), (2,)),
}
AXES = {
    "layout": ((1, 1, False), (2, 1, False), (4, 1, False), (1, 2, False), (1, 2, True), (2, 2, False), (2, 2, True),
               (4, 2, False), (4, 2, True)),
    "batching": ("static", "dynamic", "packed"),
    "micro": (1, 2, 4),
    "kind": ("clipped", "gspo", "cispo"),
    "extra": tuple(EXTRAS),
    "aggregation": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"),
    "model": ("llama", "qwen2", "qwen3"),
    "tied": (False, True),
    "temperature": (1.0, 0.7),
    "batch": tuple(BATCHES),
    "checkpointing": (False, True),
    "chunk": (None, 3),
}  # fmt: skip
COVERING = pairwise(AXES)


def cells(world):
    """Those of `world` ranks, in an order in which neighbours share process groups."""
    return sorted((cell for cell in COVERING if cell["layout"][0] * cell["layout"][1] == world), key=str)


def name_of(cell):
    return " ".join(f"{axis}={value}" for axis, value in cell.items())


def model_of(cell):
    model = tiny_model(cell["model"], tied=cell["tied"], seed=3)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.ndim == 1:  # biases and norms as they are made would hide a wrong cut
                generator = torch.Generator().manual_seed(len(name))
                each.add_(0.2 * torch.randn(each.shape, generator=generator))
    return model


def options_of(cell):
    return {**OPTIONS, "kind": cell["kind"], "aggregation": cell["aggregation"], **EXTRAS[cell["extra"]]}


def config_of(cell):
    _, tensor, sequence_parallel = cell["layout"]
    options, tokens = options_of(cell), 14 * cell["micro"]
    loss_fn = {
        "kind": options["kind"], "ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "aggregation": options["aggregation"],
        "aggregation_norm_length": options["aggregation_norm_length"], "entropy_coef": options["entropy_coef"],
        "force_on_policy_ratio": options["force_on_policy_ratio"],
        "reference_policy_kl_penalty": options["kl_penalty"], "reference_policy_kl_type": options["kl_kind"],
        "use_importance_sampling_correction": options["use_correction"],
        "importance_sampling_correction_type": options["correction_kind"],
        "truncated_importance_sampling_ratio": options["correction_cap"],
        "importance_sampling_ratio_min": options["correction_min"],
        "importance_sampling_ratio_max": options["correction_max"],
    }  # fmt: skip
    policy = {
        "train_micro_batch_size": cell["micro"], "logprob_batch_size": cell["micro"],
        "logprob_chunk_size": cell["chunk"], "max_grad_norm": MAX_NORM,
        "generation": {"temperature": cell["temperature"]}, "optimizer": {"kwargs": {**ADAM, "betas": [0.9, 0.95]}},
        "dynamic_batching": {
            "enabled": cell["batching"] == "dynamic", "train_mb_tokens": tokens, "logprob_mb_tokens": tokens,
            "sequence_length_round": 2,
        },
        "sequence_packing": {
            "enabled": cell["batching"] == "packed", "train_mb_tokens": tokens, "logprob_mb_tokens": tokens,
        },
        "dtensor_cfg": {
            "tensor_parallel_size": tensor, "sequence_parallel": sequence_parallel,
            "activation_checkpointing": cell["checkpointing"],
        },
    }  # fmt: skip
    return tiny_config(policy=policy, loss_fn=loss_fn)


def batch_of(cell):
    """Tokens, and log-probs near the model's own, so that ratios fall on both sides of every bound."""
    lengths, prompts, untrained = BATCHES[cell["batch"]]
    generator = torch.Generator().manual_seed(11)
    total = sum(lengths)
    mask = torch.tensor([
        row not in untrained and position >= prompt
        for row, (length, prompt) in enumerate(zip(lengths, prompts, strict=True))
        for position in range(length)
    ])  # fmt: skip
    tokens = torch.randint(0, VOCABULARY, (total,), generator=generator)
    own = ReferencePolicy(model_of(cell), {}, temperature=cell["temperature"], **ADAM, max_norm=MAX_NORM).logprobs(
        tokens.split(lengths)
    )

    def near(values, scale):
        return (values + scale * torch.randn(total, generator=generator)).float().where(mask, torch.nan)

    options = options_of(cell)
    old = None if options["force_on_policy_ratio"] else near(own, 0.3)
    return Batch(
        tokens=tokens, lengths=torch.tensor(lengths), mask=mask,
        generation_logprobs=near(own if old is None else old, 0.15),
        advantages=1.5 + torch.randn(len(lengths), generator=generator),
        old_logprobs=old,
        reference_logprobs=near(own, 0.3) if options["kl_penalty"] else None,
    )  # fmt: skip


@cache
def expected(name):
    """Log-probs, metrics of each update and final parameters in float64, by `name_of` of a cell of one process."""
    cell = next(each for each in COVERING if name_of(each) == name)
    batch = batch_of(cell)
    policy = ReferencePolicy(
        model_of(cell), options_of(cell), temperature=cell["temperature"], **ADAM, max_norm=MAX_NORM
    )
    sequences = batch.tokens.split(batch.lengths.tolist())
    values = {
        "mask": batch.mask, "gen": batch.generation_logprobs, "old": batch.old_logprobs,
        "ref": batch.reference_logprobs, "advantages": batch.advantages,
    }  # fmt: skip
    logprobs = policy.logprobs(sequences).where(batch.mask, 0.0)
    metrics = [policy.train(sequences, values) for _ in range(UPDATES)]
    start = {name: each.detach().double() for name, each in model_of(cell).named_parameters()}
    return logprobs, metrics, start, {name: each.detach() for name, each in policy.model.named_parameters()}


@cache
def _context(tensor, sequence_parallel):
    config = tiny_config(
        policy={"dtensor_cfg": {"tensor_parallel_size": tensor, "sequence_parallel": sequence_parallel}}
    )
    return ParallelContext.create(config.policy, "cpu")


def replay(cell):
    """What this rank makes of a cell: log-probs, metrics of each update, and the parameters."""
    parallel = _context(*cell["layout"][1:])
    assert (parallel is None) == (cell["layout"][:2] == (1, 1))
    assert parallel is None or (parallel.dp_size, parallel.tp_size) == cell["layout"][:2]
    config = config_of(cell)
    reference = model_of(cell) if config.loss_fn.reference_policy_kl_penalty else None
    policy, batch = DTensorPolicy(model_of(cell), config, reference=reference, parallel=parallel), batch_of(cell)
    logprobs = policy.logprobs(batch)
    of_reference = None if reference is None else policy.reference_logprobs(batch).numpy()
    metrics = [dict(policy.train(batch).metrics) for _ in range(UPDATES)]
    parameters = {name: each.float().numpy().copy() for name, each in policy.export_weights()}
    return logprobs.numpy(), of_reference, metrics, parameters


def differences(cell, answers):
    """Every way in which the ranks' answers are not what is expected."""
    logprobs, metrics, start, end = expected(name_of(cell))
    found = []
    for rank, (ours, of_reference, updates, parameters) in enumerate(answers):
        for what, each in (("log-probs", ours), ("reference log-probs", of_reference)):
            error = 0.0 if each is None else (torch.as_tensor(each).double() - logprobs).abs().max().item()
            if not error <= 2e-5:
                found.append(f"rank {rank}: {what} off by {error:.1e}")
        for update, (mine, theirs) in enumerate(zip(updates, metrics, strict=True)):
            found += [f"rank {rank}, update {update}: {each}" for each in _wrong_metrics(mine, theirs)]
        found += [f"rank {rank}: {each}" for each in _wrong_parameters(parameters, start, end)]
    return found


def _wrong_metrics(ours, theirs):
    odd = ours.keys() ^ theirs.keys() ^ {"learning_rate", "padding_efficiency"}
    return [f"metrics {sorted(odd)} are on one side only"] * bool(odd) + [
        f"{name} is {ours[name]!r}, not {theirs[name]!r}"
        for name in sorted(ours.keys() & theirs.keys())
        if not abs(ours[name] - theirs[name]) <= 1e-5 * abs(theirs[name])
    ]


def _wrong_parameters(ours, start, end):
    if ours.keys() != end.keys():
        return [f"parameters {sorted(ours.keys() ^ end.keys())} are on one side only"]
    norm = _norm(end)
    assert _norm({name: start[name] - end[name] for name in end}) > 2e-4 * norm, "the updates must be seen"
    error = _norm({name: torch.as_tensor(ours[name]).double() - end[name] for name in end}) / norm
    return [] if error <= 1e-6 else [f"parameters off by {error:.1e} of their norm"]


def _norm(tensors):
    return torch.stack([each.norm() for each in tensors.values()]).norm()
