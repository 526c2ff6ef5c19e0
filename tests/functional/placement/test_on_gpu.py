"""The same on a GPU: pinned copies on their own stream, and what is left on the device."""

import pytest
import torch

from grpo.placement.resources import Resource
from grpo.workers.groups.rendezvous import join_process_group, leave_process_group
from tests.support.placement_cells import OFFLOADS, Bench, config_of, model_folder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATH = ("refit", "generation", "logprobs", "policy_training", "checkpoint", "refit", "generation", "policy_training")
EVERYTHING = {"offloads": OFFLOADS, "offload_reference": True}
WORKERS = ["dtensor", "sharded", "megatron"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=WORKERS)
def backend(request, monkeypatch):
    """The PyTorch worker in one process or over a group of one rank, or Megatron-Core's, which makes such a group."""
    if request.param == "sharded":
        join_process_group("nccl", timeout_s=60)
    if request.param == "megatron":
        monkeypatch.setattr("grpo.workers.megatron.policy.megatron_on_cpu", lambda: pytest.fail("a GPU was given"))
    yield "dtensor" if request.param == "sharded" else request.param
    leave_process_group()  # or the next worker would be one of its ranks


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_policy_that_comes_and_goes_trains_like_one_that_stays(backend, precision, folder):
    moved, still = (
        Bench(config_of(folder, backend=backend, precision=precision, gpus=1, **how), folder)
        for how in (EVERYTHING, {})
    )
    moved.follow(*PATH)
    still.follow(*PATH)
    ours, theirs = moved.weights(), still.weights()
    assert ours.keys() == theirs.keys()
    for name, each in theirs.items():
        torch.testing.assert_close(ours[name], each, rtol=1e-3, atol=1e-5)


def test_what_leaves_is_freed(backend, folder):
    """Workspaces of cuBLAS stay, so it is the difference that counts."""
    bench = Bench(config_of(folder, backend=backend, gpus=1, **EVERYTHING), folder)
    bench.do("policy_training")
    away = (Resource.POLICY_PARAMETERS, Resource.OPTIMIZER_STATE)
    bytes_of_policy = sum(each.nbytes() for name in away for each in bench.policy.resources._storages(name))
    before = torch.cuda.memory_allocated()
    bench.follow("refit", "generation")
    held = bench.placement.step_metrics()
    engine = sum(each.nbytes for each in bench.engine._weights.blocks())
    after = held["memory/after_offload_allocated_gib"] * 2**30 - engine
    assert before - after >= bytes_of_policy
    assert held["memory/offloaded_gib"] * 2**30 >= bytes_of_policy


def test_what_stays_on_the_gpu_is_bounded(backend, folder):
    """Reports of 15 to 18 GB came down to 3 to 5: NCCL's buffers, contexts, workspaces, reserves."""
    bench = Bench(config_of(folder, backend=backend, gpus=1, **EVERYTHING), folder)
    for _ in range(3):
        bench.follow("refit", "generation", "logprobs", "policy_training", "checkpoint")
    bench.follow("refit", "generation")
    held = {name.rpartition("after_offload_")[2]: value for name, value in bench.placement.step_metrics().items()}
    assert held["reserved_gib"] - held["allocated_gib"] < 0.25, "no reserve but for the ends of blocks"
    assert held["driver_gib"] - held["reserved_gib"] < 3.0, held
