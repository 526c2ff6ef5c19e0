"""The parity matrix: its cells, what every rank does in one, and what that must come to in one float64 process.

The matrix says which cells: its case `parity` has a covering design for pull requests, in which every pair of values of
two axes is in some cell; `parity-product`, at night, the full product of four axes, the others taking turns.
"""

import itertools
import random
import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from grpo.batching.batch import Batch
from grpo.matrix.design import cells
from grpo.matrix.load import load_matrix
from grpo.refit.manifest import Weight
from tests.support.policy import VOCABULARY, tiny_config, tiny_model
from tests.support.ranks import RankFailedError
from tests.support.reference_policy import OPTIONS, ReferencePolicy

# `eps` is near the size of the gradients: a step far above it is their sign alone, so that no wrong scale would be seen
# and that the rounding of those near zero would be.
ADAM = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-3, "weight_decay": 0.1}
MAX_NORM = 0.5
UPDATES = 3


class Layout(NamedTuple):
    backend: str
    data: int
    tensor: int
    pipeline: int
    sequence_parallel: bool

    @property
    def world(self):
        return self.data * self.tensor * self.pipeline


LAYOUTS = tuple(
    Layout(backend, data, tensor, pipeline, sequence_parallel)
    for backend in ("pytorch", "megatron")
    for data, tensor, pipeline, sequence_parallel in itertools.product((1, 2, 4), (1, 2), (1, 2), (False, True))
    if (pipeline == 1 or backend == "megatron") and (tensor > 1 or not sequence_parallel)
)
EXTRAS = {
    "plain": {},
    "dual clip": {"ratio_clip_c": 1.5},
    "kl and entropy": {"kl_penalty": 0.3, "entropy_coef": 0.1},
    "tis": {"use_correction": True, "correction_kind": "tis"},
    "on policy": {"force_on_policy_ratio": True, "use_correction": True, "correction_kind": "seq-mask-tis"},
}
# One long sequence against many short ones (fault e1); fewer sequences than ranks; one without trained tokens.
BATCHES = {
    "skewed": ((13, 3, 5, 9, 2, 7, 4, 11, 6), (2, 1, 2, 4, 1, 3, 4, 5, 2), (6,)),
    "few": ((12, 3, 5), (4, 1, 2), (2,)),
}
# Where data parallel ranks keep what they train: Megatron's ways, and for the PyTorch backend the device or the CPU.
STATE = {
    "all-reduce": {"use_distributed_optimizer": False},
    "all-reduce, overlapped": {"use_distributed_optimizer": False, "overlap_grad_reduce": True},
    "distributed": {"use_distributed_optimizer": True},
    "distributed, overlapped": {
        "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    },
}  # fmt: skip
AXES = {
    "layout": LAYOUTS,
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
    "state": tuple(STATE),
}
MATRIX = load_matrix(Path(__file__).parents[2] / "matrices")


def name_of_value(value):
    """As `factors:` of the matrix spells it."""
    if isinstance(value, Layout):
        degrees = f"{value.backend}-dp{value.data}-tp{value.tensor}-pp{value.pipeline}"
        return f"{degrees}-sp" if value.sequence_parallel else degrees
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def cells_of(case):
    """Those of the matrix's case, with the values that its names stand for."""
    known = {axis: {name_of_value(value): value for value in values} for axis, values in AXES.items()}
    return [{axis: known[axis][name] for axis, name in cell.items()} for cell in cells(MATRIX.suites[case])]


@cache
def covering():
    """Cells of a pull request."""
    return cells_of("parity")


@cache
def product():
    """Cells of a night."""
    rest = [name for name in AXES if name not in MATRIX.suites["parity-product"].factors]
    draw = random.Random(0)
    decks = {name: [] for name in rest}

    def next_of(name):
        if not decks[name]:
            decks[name] = list(AXES[name])
            draw.shuffle(decks[name])
        return decks[name].pop()

    return [{**crossed, **{name: next_of(name) for name in rest}} for crossed in cells_of("parity-product")]


def of_world(cells, world):
    """Those of `world` ranks, in an order in which neighbours share process groups."""
    return sorted((cell for cell in cells if cell["layout"].world == world), key=str)


def of_layout(cells, layout):
    """Those of this layout: a part of the product that can be run alone."""
    return [cell for cell in cells if cell["layout"] == layout]


def name_of(cell):
    return " ".join(f"{axis}={name_of_value(value)}" for axis, value in cell.items())


def model_of(cell):
    model = tiny_model(cell["model"], tied=cell["tied"], seed=3)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.ndim == 1:  # biases and norms as they are made would hide a wrong cut
                generator = torch.Generator().manual_seed(len(name))
                each.add_(0.2 * torch.randn(each.shape, generator=generator))
        # Log-probs of -11 are rounded by a millionth: of their small differences float32 would know 1e-5 at best.
        model.get_decoder().norm.weight.mul_(0.5)
    return model


def options_of(cell):
    return {**OPTIONS, "kind": cell["kind"], "aggregation": cell["aggregation"], **EXTRAS[cell["extra"]]}


def config_of(cell):
    options, tokens = options_of(cell), 14 * cell["micro"]
    loss_fn = {
        "kind": options["kind"], "ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "aggregation": options["aggregation"],
        "ratio_clip_c": options["ratio_clip_c"], "aggregation_norm_length": options["aggregation_norm_length"],
        "entropy_coef": options["entropy_coef"], "force_on_policy_ratio": options["force_on_policy_ratio"],
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
    }  # fmt: skip
    return tiny_config(policy={**policy, **_backend(cell)}, loss_fn=loss_fn)


def _backend(cell):
    layout, checkpointing = cell["layout"], cell["checkpointing"]
    if layout.backend == "pytorch":
        return {"dtensor_cfg": {
            "tensor_parallel_size": layout.tensor, "sequence_parallel": layout.sequence_parallel,
            "activation_checkpointing": checkpointing,
            "cpu_offload": cell["state"].startswith("distributed"),
        }}  # fmt: skip
    return {"dtensor_cfg": {"enabled": False}, "megatron_cfg": {
        "enabled": True, "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline, "sequence_parallel": layout.sequence_parallel,
        "activation_checkpointing": checkpointing, "distributed_data_parallel_config": STATE[cell["state"]],
    }}  # fmt: skip


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
    own = _reference(cell, {}).logprobs(tokens.split(lengths))

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


def _reference(cell, options):
    return ReferencePolicy(model_of(cell), options, temperature=cell["temperature"], **ADAM, max_norm=MAX_NORM)


def expected(cell):
    """Log-probs before and after, metrics of each update, and parameters before and after, in one float64 process."""
    decisive = ("kind", "extra", "aggregation", "model", "tied", "temperature", "batch")
    return _expected(tuple((name, cell[name]) for name in decisive))


@cache
def _expected(decisive):
    cell = dict(decisive)
    batch = batch_of(cell)
    policy = _reference(cell, options_of(cell))
    sequences = batch.tokens.split(batch.lengths.tolist())
    values = {
        "mask": batch.mask, "gen": batch.generation_logprobs, "old": batch.old_logprobs,
        "ref": batch.reference_logprobs, "advantages": batch.advantages,
    }  # fmt: skip
    before = policy.logprobs(sequences).where(batch.mask, 0.0)
    metrics = [policy.train(sequences, values) for _ in range(UPDATES)]
    after = policy.logprobs(sequences).where(batch.mask, 0.0)
    start = {name: each.detach().double() for name, each in model_of(cell).named_parameters()}
    return before, after, metrics, start, {name: each.detach() for name, each in policy.model.named_parameters()}


def replay(cell):
    """What this rank makes of a cell; exported weights of the first rank, of the others their sums."""
    warnings.simplefilter("ignore")
    policy, batch = policy_of(cell), batch_of(cell)
    answer = {"before": policy.logprobs(batch).numpy()}
    answer["metrics"] = [dict(policy.train(batch).metrics) for _ in range(UPDATES)]
    answer["after"] = policy.logprobs(batch).numpy()
    if options_of(cell)["kl_penalty"]:
        answer["reference"] = policy.reference_logprobs(batch).numpy()
    exported = [(Weight.of(name, each), each.numpy().copy()) for name, each in policy.export_weights()]
    assert policy.describe_weights() == [weight for weight, _ in exported]
    weights = {weight.name: value for weight, value in exported}
    answer["sums"] = {name: float(each.sum()) for name, each in weights.items()}
    if torch.distributed.get_rank() == 0:
        answer["weights"] = weights
    return answer


def policy_of(cell):
    """This rank's policy; torch.distributed is initialised."""
    if cell["layout"].backend == "pytorch":
        from tests.support.pytorch_ranks import pytorch_policy

        return pytorch_policy(cell)
    from tests.support.megatron_ranks import megatron_policy

    return megatron_policy(cell)


def faults(cell, outcome):
    """What is wrong with what `try_cells` has of a cell."""
    return [str(outcome)] if isinstance(outcome, RankFailedError) else differences(cell, outcome)


def differences(cell, answers):
    """Every way in which the ranks' answers are not what is expected."""
    before, after, metrics, start, end = expected(cell)
    found = []
    for rank, answer in enumerate(answers):
        for what, wanted in (("before", before), ("after", after), ("reference", before)):
            error = (torch.as_tensor(answer.get(what, wanted)).double() - wanted).abs().max().item()
            if not error <= 2e-5:
                found.append(f"rank {rank}: log-probs {what} off by {error:.1e}")
        for update, (mine, theirs) in enumerate(zip(answer["metrics"], metrics, strict=True)):
            found += [f"rank {rank}, update {update}: {each}" for each in _wrong_metrics(mine, theirs)]
        if answer["sums"] != answers[0]["sums"]:
            found.append(f"rank {rank} has other weights than rank 0")
    return found + _wrong_parameters(answers[0]["weights"], start, end)


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
