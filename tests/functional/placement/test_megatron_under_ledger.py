"""The real Megatron-Core policy, its distributed optimizer and the checkpoint code under the residence ledger."""

import warnings

import pytest
import torch

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

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import grpo.workers.megatron.policy  # noqa: F401  (Megatron-Core warns on import)

PHASES = ("refit", "generation", "logprobs", "policy_training", "checkpoint")
EVERYTHING = {"offloads": OFFLOADS, "offload_reference": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model"))


def config(folder, *, distributed=True, overlap=False, **how):
    parallel = {
        "use_distributed_optimizer": distributed, "overlap_grad_reduce": overlap, "overlap_param_gather": overlap,
    }  # fmt: skip
    made = config_of(folder, backend="megatron", **how)
    megatron = made.policy.megatron_cfg
    changed = megatron.distributed_data_parallel_config.model_copy(update=parallel)
    megatron = megatron.model_copy(update={"distributed_data_parallel_config": changed})
    return made.model_copy(update={"policy": made.policy.model_copy(update={"megatron_cfg": megatron})})


@pytest.fixture(scope="module")
def trained(folder):
    return states_of_training(config(folder), folder, 3)


@pytest.mark.parametrize("cell", [each for each in cells("megatron") if each.legal], ids=str)
def test_train_save_train_refit_generate_train(cell, folder, trained, tmp_path):
    saved, last = run_cell(cell, folder, tmp_path)
    assert equal(saved, trained[0])
    assert equal(last, trained[2])


def test_every_legal_path_of_four_phases(folder):
    """One policy led along all of them, and no number of its training changes."""

    def legal(phase, following):
        return following != "generation" or phase in ("refit", "generation")

    bench, updates = walk(config(folder, **EVERYTHING), folder, every_path(PHASES, legal, 4), Ledger())
    assert equal(bench.weights(), states_of_training(config(folder), folder, updates)[-1])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("parallel", [
    {"distributed": True}, {"distributed": False}, {"distributed": True, "overlap": True},
], ids=str)  # fmt: skip
def test_storages_that_are_really_emptied_come_back_with_every_view_of_them(precision, parallel, folder):
    """The mechanism of a GPU, without its streams: Megatron's flat buffers, and the shards that are views of them."""
    path = ["generation", "logprobs", "policy_training", "checkpoint", "refit", "generation", "policy_training"]
    moved = config(folder, precision=precision, **parallel, **EVERYTHING)
    bench, updates = walk(moved, folder, [path, path], None, memory=EmptiedStorages(torch.device("cpu")))
    plain = config(folder, precision=precision, **parallel)
    assert equal(bench.weights(), states_of_training(plain, folder, updates)[-1])
    bench.do("refit")
    bench.do("generation")
    stage = bench.policy._trained
    for parameter in stage.model.parameters():
        held = [parameter, parameter.main_grad, *stage.moments(parameter).values()]
        assert {each.untyped_storage().nbytes() for each in held} == {0}
        assert {each.dtype for each in held[1:]} == {torch.float32}


def test_a_restored_optimizer_is_offloaded_and_brought_back_like_its_own(folder):
    path = ["refit", "generation", "policy_training"] * 2
    with Ledger() as ledger:
        first = Bench(config(folder, **EVERYTHING), folder, ledger)
        first.follow(*path)
        second = Bench(config(folder, **EVERYTHING), folder, ledger)
        second.follow("policy_training", "refit", "generation", "checkpoint")  # the host has a copy, of other values
        second.policy.load_state(first.weights(), {"weight_version": 2})
        second._seeds = first._seeds
        second.follow(*path)
        assert equal(second.weights(), states_of_training(config(folder), folder, 4)[-1])


@pytest.mark.parametrize("residence", [HOST, FREED])
def test_an_offload_after_the_checkpoint_of_a_separate_run_is_caught_by_the_next_update(residence, folder):
    """Report 3 of the reference runs."""
    cell = Cell(rollouts="async", plan="separate", backend="megatron")
    with Ledger() as ledger, bench_of(cell, folder, ledger) as bench:
        bench.follow("refit", "generation", "policy_training", "checkpoint", "policy_training", "checkpoint")
        misplace(ledger, bench.policy, Resource.OPTIMIZER_STATE, residence)
        with pytest.raises(MixedResidenceError, match=r"adamw|foreach_add"):
            bench.do("policy_training")


@pytest.mark.parametrize("where", FAULTS)
def test_a_move_in_the_wrong_place_is_caught(where, folder):
    with Ledger() as ledger:
        bench = Bench(cell_config(Cell(plan="separate", backend="megatron"), folder), folder, ledger)
        inject(bench, where, HOST)
        with pytest.raises(MixedResidenceError):
            bench.follow("refit", "logprobs", "policy_training", "checkpoint", "policy_training")


@pytest.mark.parametrize("resource", POLICY)
@pytest.mark.parametrize("residence", [Residence.CPU, Residence.ABSENT])
def test_a_separate_run_has_no_way_to_ask_for_an_offload(resource, residence, folder):
    policy = Bench(cell_config(Cell(plan="separate", backend="megatron"), folder), folder).policy
    with pytest.raises(
        PlacementError, match=rf"{resource} is on gpu and cannot be moved to {residence}: the separate plan"
    ):
        policy.move(resource, residence)
