"""The Megatron policy over real processes against float64 formulas and the single-process PyTorch policy."""

import copy
import functools
import itertools

import pytest
import torch

from tests.support.objective64 import train64
from tests.support.pairwise import pairwise
from tests.support.policy import dense_logprobs
from tests.support.ranks import run_cells

LAYOUTS = {  # world: tensor, pipeline, sequence parallel
    1: [(1, 1, False)],
    2: [(1, 1, False), (2, 1, False), (2, 1, True), (1, 2, False)],
    4: [(1, 1, False), (2, 1, False), (2, 1, True), (1, 2, False), (2, 2, False), (2, 2, True)],
    8: [(2, 2, True), (1, 2, False)],
}
DATA_PARALLEL = {
    "all-reduce": {"use_distributed_optimizer": False},
    "all-reduce, overlapped": {"use_distributed_optimizer": False, "overlap_grad_reduce": True},
    "distributed": {"use_distributed_optimizer": True},
    "distributed, overlapped": {
        "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    },
}  # fmt: skip
BATCHING = {
    "static 1": {"train_micro_batch_size": 1, "logprob_batch_size": 3},
    "static 2": {"train_micro_batch_size": 2},
    "static 4": {"train_micro_batch_size": 4},
    "packed": {"sequence_packing": {"enabled": True, "train_mb_tokens": 20, "logprob_mb_tokens": 31}},
    "dynamic": {"dynamic_batching": {"enabled": True, "train_mb_tokens": 24, "sequence_length_round": 4}},
    "chunked": {"train_micro_batch_size": 3, "logprob_chunk_size": 2},
}
LOSSES = {  # as configured, and as the float64 reference is told
    "clipped": ({}, {}),
    "dual clip, sequence mean": (
        {"ratio_clip_c": 1.5, "ratio_clip_max": 0.28, "aggregation": "seq_mean_token_mean"},
        {"dual": 1.5, "high": 0.28, "aggregation": "seq_mean_token_mean"},
    ),
    "kl and entropy": ({"reference_policy_kl_penalty": 0.3, "entropy_coef": 0.1}, {"kl": 0.3, "entropy": 0.1}),
    "gspo": ({"kind": "gspo", "entropy_coef": 0.1}, {"kind": "gspo", "entropy": 0.1}),
    "cispo, tis": (
        {
            "kind": "cispo", "aggregation": "seq_mean_token_sum", "use_importance_sampling_correction": True,
            "importance_sampling_correction_type": "tis", "truncated_importance_sampling_ratio": 1.1,
        },
        {"kind": "cispo", "aggregation": "seq_mean_token_sum", "tis_cap": 1.1},
    ),
    "on policy": ({"force_on_policy_ratio": True}, {"on_policy": True}),
}  # fmt: skip
MODELS = list(itertools.product(("llama", "qwen2", "qwen3"), (False, True)))
PRELOAD = ["tests.support.megatron_cells"]


def cells_of(world):
    """Every pair of layout, data parallelism, batching, loss, model and recompute, for this number of ranks."""
    factors = {
        "layout": LAYOUTS[world], "data": list(DATA_PARALLEL), "batching": list(BATCHING), "loss": list(LOSSES),
        "model": MODELS, "recompute": [False, True],
    }  # fmt: skip
    if world == 8:  # costly: a few
        return pairwise({**factors, "model": MODELS[1::2], "loss": list(LOSSES)[1:3]})[:8]
    return pairwise(factors)


def as_cell(chosen):
    tensor, pipeline, sequence_parallel = chosen["layout"]
    return {
        "model": chosen["model"],
        "policy": BATCHING[chosen["batching"]],
        "loss_fn": LOSSES[chosen["loss"]][0],
        "megatron": {
            "tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline,
            "sequence_parallel": sequence_parallel, "activation_checkpointing": chosen["recompute"],
            "distributed_data_parallel_config": DATA_PARALLEL[chosen["data"]],
        },
    }  # fmt: skip


@functools.cache
def reference(model, loss):
    """In float64: log-probs before, metrics of each update, the model after."""
    from tests.support import megatron_cells as ranks

    cell = {"model": model, "loss_fn": LOSSES[loss][0]}
    trained, data = ranks.model(cell).double(), ranks.given(cell)
    before = dense_logprobs(trained, data).detach()
    history = train64(trained, data, steps=ranks.STEPS, max_norm=1.0, **ranks.ADAMW, **LOSSES[loss][1])
    return before, history, trained


@functools.cache
def single_process(model, loss):
    """Metrics of each update of the PyTorch policy."""
    from grpo.workers.policy.dtensor import DTensorPolicy
    from tests.support import megatron_cells as ranks

    cell = {"model": model, "loss_fn": LOSSES[loss][0]}
    config, given = ranks.config(cell), ranks.given(cell)
    needs = config.loss_fn.reference_policy_kl_penalty != 0
    policy = DTensorPolicy(ranks.model(cell), config, reference=ranks.model(cell) if needs else None)
    return [dict(policy.train(given).metrics) for _ in range(ranks.STEPS)]


def close(ours, theirs, *, rel=1e-5, absolute=2e-6):
    return abs(ours - theirs) <= max(rel * abs(theirs), absolute)


def faults(chosen, result):
    """What of a cell's result is not as it should be."""
    from tests.support import megatron_cells as ranks

    before, history, trained = reference(chosen["model"], chosen["loss"])
    data = ranks.given(as_cell(chosen))
    yield from logprob_faults(result, before, dense_logprobs(trained, data).detach())
    alone = single_process(chosen["model"], chosen["loss"])
    for step, (ours, exact, theirs) in enumerate(zip(result["metrics"], history, alone, strict=True)):
        yield from metric_faults(f"update {step + 1}, against float64", ours, exact)
        yield from metric_faults(f"update {step + 1}, against one process", ours, theirs)
        if ours.keys() != theirs.keys():
            yield f"metrics differ: {sorted(ours.keys() ^ theirs.keys())}"
    yield from weight_faults(result, trained, data)


def logprob_faults(result, before, after):
    # After the updates the weights are not quite the same.
    for name, expected, tolerance in (("before", before, 5e-6), ("reference", before, 5e-6), ("after", after, 2e-5)):
        if name in result:
            error = (result[name].double() - expected).abs().max().item()
            if error > tolerance:
                yield f"log-probs {name}: off by {error:.1e}"


def metric_faults(where, ours, theirs):
    for name in theirs.keys() - {"padding_efficiency"}:
        if not close(ours[name], theirs[name]):
            yield f"{where}: {name} is {ours[name]!r} and not {theirs[name]!r}"


def weight_faults(result, trained, data):
    weights = dict(trained.named_parameters())
    if result["weights"].keys() != weights.keys():
        yield f"exported names differ: {sorted(result['weights'].keys() ^ weights.keys())}"
        return
    difference = sum((each - weights[name]).detach().square().sum() for name, each in result["weights"].items()) ** 0.5
    size = sum(each.detach().square().sum() for each in weights.values()) ** 0.5
    if difference > 1e-6 * size:
        yield f"weights after the updates: off by {difference / size:.1e} of their norm"
    loaded = copy.deepcopy(trained).float()
    loaded.load_state_dict(result["weights"], strict=False)
    loaded.tie_weights()
    error = (dense_logprobs(loaded, data).detach() - result["after"]).abs().max().item()
    if error > 1e-5:
        yield f"log-probs of transformers with the exported weights: off by {error:.1e}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("world", LAYOUTS)
def test_every_layout_trains_alike(world):
    from tests.support.megatron_cells import replay

    chosen = cells_of(world)
    results = run_cells(replay, [as_cell(each) for each in chosen], world=world, preload=PRELOAD, seconds=30)
    wrong = [
        f"{each}: {fault}" for each, (result, *_) in zip(chosen, results, strict=True) for fault in faults(each, result)
    ]
    assert not wrong, f"{len(wrong)} faults in {len(chosen)} cells:\n" + "\n".join(wrong[:20])


@pytest.mark.timeout(200)
def test_ranks_without_a_sequence_take_part():
    from tests.support.megatron_cells import replay

    layouts = [
        ("distributed, overlapped", (1, 1, False)),
        ("all-reduce", (1, 1, False)),
        ("distributed", (1, 2, False)),
    ]
    cells = [
        as_cell(
            {
                "model": ("qwen3", False),
                "batching": "packed",
                "loss": "clipped",
                "recompute": False,
                "data": data,
                "layout": layout,
            }
        )
        | {"rows": rows}
        for data, layout in layouts
        for rows in ([0, 3, 8], [2, 7])  # sequence 2 trains nothing
    ]
    alone = list(run_cells(replay, [cells[0] | {"rows": [0, 3, 8]}, cells[1]], world=1, preload=PRELOAD, seconds=30))
    for index, (result, *_) in enumerate(run_cells(replay, cells, world=4, preload=PRELOAD, seconds=30)):
        expected = alone[index % 2][0]
        torch.testing.assert_close(result["before"], expected["before"], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(result["metrics"], expected["metrics"], strict=True):
            for name in theirs.keys() - {"padding_efficiency"}:
                assert close(ours[name], theirs[name]), (cells[index], name)


@pytest.mark.timeout(200)
def test_a_gradient_that_is_not_finite_is_refused_on_every_rank_and_changes_nothing():
    from tests.support.megatron_cells import refuse_nan

    cells = [
        as_cell(
            {
                "model": ("llama", True),
                "batching": "static 2",
                "loss": "clipped",
                "recompute": False,
                "data": data,
                "layout": layout,
            }
        )
        for data, layout in (
            ("distributed, overlapped", (1, 1, False)),
            ("distributed", (1, 2, False)),
            ("all-reduce", (2, 1, True)),
        )
    ]
    for messages in run_cells(refuse_nan, cells, world=2, preload=PRELOAD, seconds=30):
        assert all(
            message.startswith("update 2: the gradient norm is nan over 34 trained tokens") for message in messages
        )
