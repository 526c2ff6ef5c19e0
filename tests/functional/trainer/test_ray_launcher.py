"""`cluster.launcher=ray`: policy and engine in processes of their own give the run of one process, to the bit."""

import json

import pytest
import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.manifest import read_manifest
from grpo.checkpoint.stored import read_shards
from grpo.telemetry.journal import read_journal
from grpo.telemetry.reader import read_run
from grpo.workers.groups.failures import RankError
from grpo.workers.policy import factory
from tests.support.run_metrics import compare_runs, lines, metrics_of
from tests.support.small_run import run_small

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
OPTIONS = (
    "loss_fn.force_on_policy_ratio=false", "loss_fn.reference_policy_kl_penalty=0.1",
    "policy.train_global_batch_size=6", "policy.train_micro_batch_size=2",
)  # fmt: skip


def weights_of(directory):
    manager = CheckpointManager(
        directory / "checkpoints", keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    path = manager.list()[-1].path
    manifest = read_manifest(path)
    return {name: each for name, each in read_shards(path, manifest.tensors).items() if name.startswith("policy/")}


def test_a_run_in_workers_is_that_of_one_process_and_resumes_in_either(tmp_path):
    run_small(tmp_path / "alone", *OPTIONS)
    run_small(tmp_path / "workers", *OPTIONS, "cluster.launcher=ray", "grpo.max_num_steps=3")
    run_small(tmp_path / "workers", *OPTIONS, "grpo.max_num_steps=4")
    run_small(tmp_path / "workers", *OPTIONS, "cluster.launcher=ray")
    assert metrics_of(tmp_path / "workers") == metrics_of(tmp_path / "alone")
    one, other = weights_of(tmp_path / "workers"), weights_of(tmp_path / "alone")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    *_, last = lines(tmp_path / "workers")
    assert last["performance/dispatches"] == 5  # the weights, log-probs, reference log-probs, two updates
    assert 0 < last["performance/dispatch_overhead_seconds"] <= last["performance/dispatch_seconds"]
    assert last["memory/policy_rss_gib"] > 0.05


DATA_X_TENSOR = ("policy.dtensor_cfg.tensor_parallel_size=2", "policy.dtensor_cfg.sequence_parallel=true")
TENSOR_X_PIPELINE = (
    "policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true",
    "policy.megatron_cfg.tensor_model_parallel_size=2", "policy.megatron_cfg.sequence_parallel=true",
    "policy.megatron_cfg.pipeline_model_parallel_size=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of two steps in one process."""
    directory = tmp_path_factory.mktemp("runs") / "alone"
    run_small(directory, *OPTIONS, "grpo.max_num_steps=2")
    return directory


@pytest.mark.parametrize("layout", [DATA_X_TENSOR, TENSOR_X_PIPELINE], ids=["data x tensor", "tensor x pipeline"])
def test_a_run_over_four_ranks_is_that_of_one_process(tmp_path, alone, layout):
    run_small(tmp_path / "ranks", *OPTIONS, "grpo.max_num_steps=2", "cluster.cpu_ranks=4", *layout)
    compare_runs(tmp_path / "ranks", alone)
    *_, last = lines(tmp_path / "ranks")
    assert 0 < last["performance/logprob_padding_efficiency"] <= 1
    *_, ranks = read_journal(tmp_path / "ranks" / "ranks.jsonl")
    assert ranks["step"] == 2
    for phase in ("timing/logprobs", "timing/policy_training", "timing/refit"):
        assert len(ranks["hosts"]) == len(ranks[phase]) == 4
        assert all(0 < each < last[phase] for each in ranks[phase])
    if layout == DATA_X_TENSOR:
        expected = weights_of(alone)
        for name, each in weights_of(tmp_path / "ranks").items():
            # A gradient element that is nearly 0 moves its weight by the learning rate, in a direction of chance.
            bound = 1e-6 if name.startswith("policy/model.") else 1e-5
            assert float((each - expected[name]).norm() / expected[name].norm()) <= bound, name


def test_a_run_over_ranks_is_that_of_one_process_and_resumes_to_the_bit(tmp_path):
    overrides = [*OPTIONS, "grpo.max_num_steps=2", "checkpointing.save_period=1"]
    ranks = [*overrides, "cluster.launcher=ray", "cluster.cpu_ranks=2", "checkpointing.async_save=true"]
    run_small(tmp_path / "alone", *overrides)
    run_small(tmp_path / "ranks", *ranks)
    for one, other in zip(metrics_of(tmp_path / "ranks"), metrics_of(tmp_path / "alone"), strict=True):
        assert one.keys() == other.keys()
        one.pop("train/padding_efficiency", None)  # each rank has its own micro-batches
        assert one == pytest.approx({name: other[name] for name in one}, rel=1e-5, abs=1e-6)
    uninterrupted = weights_of(tmp_path / "ranks")
    for name, each in uninterrupted.items():
        torch.testing.assert_close(each, weights_of(tmp_path / "alone")[name], rtol=1e-5, atol=1e-6)
    run_small(tmp_path / "interrupted", *ranks, "grpo.max_num_steps=1")
    run_small(tmp_path / "interrupted", *ranks)
    assert metrics_of(tmp_path / "interrupted") == metrics_of(tmp_path / "ranks")
    resumed = weights_of(tmp_path / "interrupted")
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in resumed)
    loaded = [event for event in read_run(tmp_path / "interrupted").events if event["kind"] == "checkpoint_loaded"]
    assert [(event["optimizer"], event["random_states_not_taken"]) for event in loaded] == [(True, [])]


def fail_to_start(config):
    del config
    raise FloatingPointError("nothing but NaN")


def test_a_worker_that_cannot_start_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(factory, "make_rank", fail_to_start)
    with pytest.raises(RankError, match=r"rank 0 on node 127.0.0.1 .*: start raised FloatingPointError: nothing but"):
        run_small(tmp_path / "run", "cluster.launcher=ray")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["state"] == "failed"
    assert "rank 0" in manifest["reason"]
