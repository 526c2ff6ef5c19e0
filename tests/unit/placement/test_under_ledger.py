"""The real PyTorch policy, its optimizer, an engine and the checkpoint code under the residence ledger.

Megatron-Core's are in tests/functional/placement.
"""

import contextlib

import pytest
import torch

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import POLICY, Residence, Resource
from grpo.workers.offload.memory import EmptiedStorages
from tests.support.ledger import FREED, HOST, Ledger, MixedResidenceError, misplace
from tests.support.placement_cells import (
    FAULTS,
    OFFLOADS,
    Bench,
    Cell,
    bench_of,
    cell_config,
    cells,
    config_of,
    equal,
    every_path,
    inject,
    model_folder,
    run_cell,
    states_of_training,
    walk,
)
from tests.support.pretended_ranks import lone_rank

PHASES = ("refit", "generation", "logprobs", "policy_training", "checkpoint")
CELLS = cells("dtensor")
EXECUTIONS = {"local": contextlib.nullcontext, "sharded": lone_rank}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture(params=EXECUTIONS)
def execution(request):
    with EXECUTIONS[request.param]():
        yield request.param


@pytest.fixture
def trained(folder, execution, known):
    if execution not in known:
        known[execution] = states_of_training(config_of(folder), folder, 3)
    return known[execution]


@pytest.mark.parametrize("cell", [each for each in CELLS if each.legal], ids=str)
def test_train_save_train_refit_generate_train(cell, folder, trained, tmp_path):
    saved, last = run_cell(cell, folder, tmp_path)
    assert equal(saved, trained[0])
    assert equal(last, trained[2])


ASYNC = ["grpo.async_grpo.enabled=true", "loss_fn.use_importance_sampling_correction=true"]
APART = ["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=4"]
MOVES = [
    "policy.offload_reference=true", "policy.offload_optimizer_for_logprob=true",
    *(f"policy.generation.colocated.{key}=true" for key in ("offload_optimizer", "offload_parameters")),
    "policy.generation.colocated.sleep_level=2",
]  # fmt: skip
BACKENDS = {"dtensor": "grpo_math_8b", "megatron": "grpo_math_8b_megatron"}


def load(cell):
    wanted = [*(ASYNC if cell.rollouts == "async" else ()), *(APART if cell.plan == "separate" else ())]
    wanted.append(f"checkpointing.async_save={'true' if cell.checkpoint == 'async' else 'false'}")
    return load_config(BACKENDS[cell.backend], [*wanted, *(MOVES if cell.offload else ())])


@pytest.mark.parametrize("cell", cells(*BACKENDS), ids=str)
def test_an_illegal_cell_is_refused_with_the_keys(cell):
    if cell.legal:
        load(cell)
        return
    with pytest.raises(ConfigError) as error:
        load(cell)
    message = str(error.value)
    assert "policy.generation.colocated.enabled = " in message
    if cell.plan == "colocated":
        assert "grpo.async_grpo.enabled = true" in message
    else:
        assert [each for each in MOVES if each.split("=")[0] + " = " not in message] == []


PLANS = {
    "everything": {"offloads": OFFLOADS, "offload_reference": True},
    "level one": {"offloads": {"offload_optimizer": True, "sleep_level": 1}, "offload_optimizer_for_logprob": True},
}


@pytest.mark.parametrize(("plan", "length"), [("everything", 4), ("level one", 3)])
def test_every_legal_path_of_four_phases(plan, length, folder):
    """One policy led along all of them, and no number of its training changes."""
    config = config_of(folder, **PLANS[plan])

    def legal(phase, following):
        refit_first = config.policy.generation.colocated.sleep_level == 2
        return not (refit_first and following == "generation" and phase not in ("refit", "generation"))

    bench, updates = walk(config, folder, every_path(PHASES, legal, length), Ledger())
    assert equal(bench.weights(), states_of_training(config_of(folder), folder, updates)[-1])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_storages_that_are_really_emptied_come_back_with_every_view_of_them(precision, folder, execution):
    """The mechanism of a GPU, without its streams. An optimizer is moved before its first update and after."""
    path = ["generation", "logprobs", "policy_training", "checkpoint", "refit", "generation", "policy_training"]
    moved = config_of(folder, precision=precision, **PLANS["everything"])
    bench, updates = walk(moved, folder, [path, path], None, memory=EmptiedStorages(torch.device("cpu")))
    assert equal(bench.weights(), states_of_training(config_of(folder, precision=precision), folder, updates)[-1])
    bench.do("refit")
    bench.do("generation")
    assert all(each.untyped_storage().nbytes() == 0 for each in local(bench.policy._masters.parameters()))
    moments = [each for name, each in bench.policy._optimizer.state().items() if not name.endswith("step")]
    assert len(moments) > 10
    assert all(each.untyped_storage().nbytes() == 0 for each in local(moments))
    assert all(each.grad is None for each in bench.policy._masters.parameters())


def local(tensors):
    return [each.to_local() if hasattr(each, "to_local") else each for each in tensors]


def test_a_restored_optimizer_is_offloaded_and_brought_back_like_its_own(folder):
    config, batches = config_of(folder, **PLANS["everything"]), ["refit", "generation", "policy_training"] * 2
    with Ledger() as ledger:
        first = Bench(config, folder, ledger)
        first.follow(*batches)
        second = Bench(config, folder, ledger)
        second.follow("policy_training", "refit", "generation", "checkpoint")  # the host has a copy, of other values
        second.policy.load_state(first.weights(), {"weight_version": 2})
        second._seeds = first._seeds
        second.follow(*batches)
        assert equal(second.weights(), states_of_training(config_of(folder), folder, 4)[-1])


@pytest.mark.parametrize("residence", [HOST, FREED])
@pytest.mark.parametrize("rollouts", ["sync", "async"])
def test_an_offload_after_the_checkpoint_of_a_separate_run_is_caught_by_the_next_update(
    rollouts, residence, folder, execution
):
    """Report 3 of the reference runs: `exp_avg.lerp_(grad)` on two devices, after a checkpoint and only then."""
    with Ledger() as ledger, bench_of(Cell(rollouts=rollouts, plan="separate"), folder, ledger) as bench:
        bench.follow("refit", "generation", "policy_training", "checkpoint", "policy_training", "checkpoint")
        misplace(ledger, bench.policy, Resource.OPTIMIZER_STATE, residence)
        with pytest.raises(MixedResidenceError, match=r"adamw|foreach_add"):
            bench.do("policy_training")


@pytest.mark.parametrize("residence", [HOST, FREED])
def test_what_is_moved_from_under_an_engine_that_samples_on_ends_the_wait_for_its_groups(residence, folder):
    with Ledger() as ledger, bench_of(Cell(rollouts="async", plan="separate"), folder, ledger) as bench:
        bench.follow("refit", "generation")

        def step():
            bench.follow("policy_training", "policy_training", "refit")
            ledger.mark(bench.engine._weights.blocks(), residence)
            bench.do("generation")

        with pytest.raises(MixedResidenceError):
            [step() for _ in range(4)]  # what was sampled before is taken first


@pytest.mark.parametrize("where", FAULTS)
def test_a_move_in_the_wrong_place_is_caught(where, folder, execution):
    # Shards of the reference and of an export are copied first: a GPU allows that from the host, not from nowhere.
    residence = FREED if execution == "sharded" and where in ("reference", "export") else HOST
    with Ledger() as ledger:
        bench = Bench(cell_config(Cell(plan="separate"), folder), folder, ledger)
        inject(bench, where, residence)
        with pytest.raises(MixedResidenceError):
            bench.follow("refit", "logprobs", "policy_training", "checkpoint", "policy_training")


@pytest.mark.parametrize("resource", POLICY)
@pytest.mark.parametrize("residence", [Residence.CPU, Residence.ABSENT])
def test_a_separate_run_has_no_way_to_ask_for_an_offload(resource, residence, folder):
    policy = Bench(cell_config(Cell(plan="separate"), folder), folder).policy
    with pytest.raises(
        PlacementError, match=rf"{resource} is on gpu and cannot be moved to {residence}: the separate plan"
    ):
        policy.move(resource, residence)


@pytest.mark.parametrize(("call", "resource"), [
    ("train", "policy_parameters"), ("logprobs", "policy_parameters"), ("export_weights", "policy_parameters"),
    ("state", "policy_parameters"), ("reference_logprobs", "reference_parameters"),
    ("write_weights", "policy_parameters"),
])  # fmt: skip
def test_a_call_without_what_it_needs_says_what_is_where(call, resource, folder):
    bench = Bench(config_of(folder, **PLANS["everything"]), folder)
    bench.do("generation")
    arguments = [] if call in ("state", "export_weights") else [None]
    with pytest.raises(PlacementError, match=f"{call} needs {resource} on gpu, but it is on cpu"):
        getattr(bench.policy, call)(*arguments)
