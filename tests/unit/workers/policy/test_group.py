"""A policy behind a worker group does what it does without one."""

import copy

import pytest
import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import LocalState
from grpo.checkpoint.saver import Saver
from grpo.errors import CheckpointError, WorkerError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import Residence, Resource
from grpo.workers.groups.worker_group import InProcessGroup
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.policy.rank_policy import RankPolicy
from tests.support.policy import random_batch, tiny_config, tiny_model
from tests.support.refits import settings

KL = {"loss_fn": {"reference_policy_kl_penalty": 0.1, "force_on_policy_ratio": False}}


def new_policy(**settings):
    model = tiny_model(**settings)
    return DTensorPolicy(model, tiny_config(**KL), reference=copy.deepcopy(model))


def grouped(**settings):
    return PolicyGroup(InProcessGroup(RankPolicy, lambda: new_policy(**settings)))


def weights(group):
    """Of the one rank, which is in this process."""
    return dict(group.workers._worker._policy.export_weights())


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def test_results_are_those_of_the_policy_to_the_bit():
    alone, group = new_policy(), grouped()
    for seed in range(3):
        batch = random_batch(seed=seed)
        assert torch.equal(group.logprobs(batch), alone.logprobs(batch))
        assert torch.equal(group.reference_logprobs(batch), alone.reference_logprobs(batch))
        assert group.train(batch) == alone.train(batch)
        assert group.weight_version == alone.weight_version == seed + 1


def saved(states, folder):
    """The manager of a folder with a checkpoint of the states of all ranks."""
    manager = CheckpointManager(
        folder, keep_latest=9, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    saver = Saver(manager, states, in_background=False)
    saver.stage({}, {})
    saver.write(1, {})
    saver.wait()
    return manager


def load(manager, *states, optimizer=True):
    with manager.open_latest() as found:
        return [each.load(found.opened, optimizer=optimizer) for each in states]


def test_a_checkpoint_resumes_in_a_group_and_without_one(tmp_path):
    group, other, alone = grouped(), grouped(seed=5), new_policy(seed=6)
    group.train(random_batch())
    manager = saved(group, tmp_path)
    assert load(manager, other, LocalState(alone)) == [[], []]
    assert other.weight_version == alone.weight_version == 1
    results = [policy.train(random_batch(seed=1)) for policy in (group, other, alone)]
    assert results[0].metrics["loss"] == results[1].metrics["loss"] == results[2].metrics["loss"]
    assert equal(weights(group), weights(other))
    assert equal(weights(group), dict(alone.export_weights()))
    assert load(saved(LocalState(alone), tmp_path / "alone"), group) == [["rng/rank_00000/"]], "no rank's own is there"


def test_without_the_optimizer_adam_begins_anew_and_the_schedule_goes_on(tmp_path):
    group, other = grouped(), new_policy(seed=6)
    group.train(random_batch())
    load(saved(group, tmp_path), LocalState(other), optimizer=False)
    assert other.weight_version == 1
    assert not [piece.name for piece in other.state()[0] if piece.name.startswith("optimizer.")]
    assert equal(weights(group), dict(other.export_weights()))


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="another model"):
        load(saved(grouped(), tmp_path), grouped(intermediate_size=44))


def test_a_step_counts_its_calls_and_the_memory_of_the_ranks():
    group = grouped()
    group.step_metrics()
    group.train(random_batch())
    group.workers.call_all("refit_describe", settings())
    metrics = group.step_metrics()
    assert metrics["performance/dispatches"] == 2  # the update and the description of the weights
    assert 0 <= metrics["performance/dispatch_overhead_seconds"] < metrics["performance/dispatch_seconds"]
    assert 0.05 < metrics["memory/policy_rss_gib"] < 100
    assert group.step_metrics()["performance/dispatches"] == 0


class Disagreeing(InProcessGroup):
    """Answers for a second rank that is one update behind."""

    def call_all(self, method, *arguments, deadline_s=None):
        (own,) = super().call_all(method, *arguments, deadline_s=deadline_s)
        return [own, (own[0], own[1] - 1, own[2])] if method == "train" else [own, own]


def test_ranks_at_different_versions_end_the_group():
    group = PolicyGroup(Disagreeing(RankPolicy, new_policy))
    with pytest.raises(WorkerError, match=r"different versions of the weights: rank 0: 1, rank 1: 0"):
        group.train(random_batch())
    with pytest.raises(WorkerError, match="after the worker had ended"):
        group.logprobs(random_batch())


def test_every_rank_moves_and_the_group_knows_where_things_are():
    generation = {"colocated": {"offload_optimizer": True}}
    config = tiny_config(policy={"generation": generation}, **KL)
    model = tiny_model()
    group = PolicyGroup(
        InProcessGroup(RankPolicy, lambda: DTensorPolicy(model, config, reference=copy.deepcopy(model)))
    )
    group.step_metrics()
    assert group.residences()[Resource.OPTIMIZER_STATE] == Residence.GPU
    assert group.move(Resource.OPTIMIZER_STATE, Residence.CPU) == 0  # on a CPU
    group.move(Resource.OPTIMIZER_STATE, Residence.CPU)
    assert group.residences()[Resource.OPTIMIZER_STATE] == Residence.CPU
    assert group.release() == {}
    assert group.step_metrics()["performance/dispatches"] == 2
    with pytest.raises(PlacementError, match="train needs optimizer_state on gpu, but it is on cpu"):
        group.train(random_batch())


def test_a_move_that_the_plan_never_makes_is_refused_by_the_ranks():
    with pytest.raises(PlacementError, match="optimizer_state is on gpu and cannot be moved to cpu"):
        grouped().move(Resource.OPTIMIZER_STATE, Residence.CPU)


def test_the_seconds_of_ranks_are_of_their_phases():
    group = grouped()
    batch = random_batch()
    group.logprobs(batch)
    group.reference_logprobs(batch)
    group.train(batch)
    group.workers.call_all("refit_describe", settings())
    group.workers.call_all("refit_open", "shared", 0, "")
    group.workers.call_all("refit_send", 1)
    first = group.rank_seconds()
    assert first.phases.keys() == {"timing/logprobs", "timing/policy_training", "timing/refit"}
    assert all(len(each) == len(first.hosts) == 1 and each[0] > 0 for each in first.phases.values())
    assert group.rank_seconds().phases == {}


def test_what_ranks_measured_is_told_once():
    group = grouped()
    group.logprobs(random_batch())
    group.train(random_batch())
    told = group.step_metrics()
    # Rows of 4, 8, 2 and 11 tokens, all 11 wide, and one of 6.
    assert told["performance/logprob_padding_efficiency"] == pytest.approx(31 / 50)
    assert told["memory/policy_rss_gib"] > 0
    group.train(random_batch())
    assert "performance/logprob_padding_efficiency" not in group.step_metrics()


def test_ranks_describe_their_device_and_machine():
    names, nodes = grouped().describe()
    assert len(names) == len(nodes) == 1
    assert nodes[0]["cpus"] >= 1
