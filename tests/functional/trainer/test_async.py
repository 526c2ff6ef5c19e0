"""Asynchronous training with real engines in a process of their own."""

import json
import threading
from statistics import fmean

import pytest

from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.errors import WorkerError
from grpo.trainer.run import train
from grpo.workers.generation import stream_group
from tests.support.replay import DyingRank
from tests.support.small_run import run_small

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
ASYNC = (
    "cluster.launcher=ray", "policy.generation.colocated.enabled=false", "grpo.async_grpo.enabled=true",
    "loss_fn.use_importance_sampling_correction=true", "loss_fn.force_on_policy_ratio=false",
)  # fmt: skip
IN_FLIGHT = ("policy.generation.backend=vllm", "grpo.async_grpo.in_flight_weight_updates=true")
RECOMPUTED = (
    *IN_FLIGHT, "grpo.async_grpo.recompute_kv_cache_after_weight_updates=true",
    "grpo.async_grpo.max_trajectory_age_steps=2",
)  # fmt: skip


def lines(directory):
    found = [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["step"] > 0]


@pytest.mark.parametrize(
    ("options", "limit"),
    [pytest.param(IN_FLIGHT, 1, id="kept", marks=pytest.mark.nightly), pytest.param(RECOMPUTED, 2, id="recomputed")],
)
def test_ages_are_bounded_with_weights_in_mid_flight(tmp_path, options, limit):
    run_small(tmp_path / "run", *ASYNC, *options)
    steps = lines(tmp_path / "run")
    assert [line["step"] for line in steps] == list(range(1, 7))
    assert steps[0]["rollout/age_steps_max"] == 0
    assert 1 <= max(line["rollout/age_steps_max"] for line in steps) <= limit
    assert {line["rollout/samples"] for line in steps} == {12}
    assert {line["timing/rewards"] for line in steps} == {0}
    # Tokens of the newest weights have the trainer's log-probs; older ones differ by what an update changes.
    assert steps[0]["train/logprob_difference"] < 1e-4
    assert all(1e-4 < line["train/logprob_difference"] < 0.5 for line in steps if line["rollout/age_steps_mean"] == 1)


def test_every_prompt_is_trained_once_over_interruptions(tmp_path):
    few = ("data.train.max_samples=20", "data.validation=null", "grpo.max_num_epochs=1", "grpo.val_period=0")
    for stop in (3, 1000):
        run_small(tmp_path / "run", *ASYNC, *few, "checkpointing.save_period=1", f"grpo.max_num_steps={stop}")
    steps = lines(tmp_path / "run")
    assert [line["rollout/samples"] for line in steps] == [12.0] * 6 + [8.0]
    assert "rollout-collector" not in {thread.name for thread in threading.enumerate()}
    assert {line["rollout/age_steps_max"] for line in steps} <= {0.0, 1.0}


def test_an_engine_that_dies_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_group, "StreamRank", DyingRank)
    with pytest.raises(WorkerError, match=r"DyingRank rank 0 .* died during"):
        run_small(tmp_path / "run", *ASYNC, "grpo.max_num_steps=1000")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["state"] == "failed"


def test_it_learns_as_synchronous_training_does(tmp_path):
    """`tiny` as it is shipped, with rollouts one step old, against itself with the newest weights; chance is 0.13."""
    finished, rewards = {}, {}
    for name, options in (("async", ASYNC), ("sync", ())):
        with StopRequest() as stop:
            resolved = load_config("tiny", [*options, f"logger.log_dir={tmp_path / name}"])
            finished[name] = train(resolved, fresh=False, quiet=True, command=[], stop=stop)
        rewards[name] = [line["train/reward"] for line in lines(tmp_path / name)]
    for each in finished.values():
        assert each.outcome.reason == "reward"
        assert each.outcome.accuracy > 0.9
    assert abs(finished["async"].outcome.accuracy - finished["sync"].outcome.accuracy) < 0.06
    # Equal rewards: the same height after the same steps, and as many steps to the same reward.
    common = min(map(len, rewards.values()))
    assert abs(fmean(rewards["async"][:common]) - fmean(rewards["sync"][:common])) < 0.1
    assert 0.5 < len(rewards["async"]) / len(rewards["sync"]) < 2
