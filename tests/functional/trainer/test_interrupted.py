"""Whole runs over two data parallel ranks: interrupted, they are to the bit the run that was not, on both backends."""

import pytest

from grpo.telemetry.reader import read_run
from grpo.workers.groups.ray_session import RaySession
from tests.support.quick_run import run_quick
from tests.support.run_contents import assert_same_run

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]
OPTIONS = (
    "checkpointing.save_period=1", "checkpointing.keep_latest=9", "checkpointing.async_save=true", "grpo.val_period=2",
    "cluster.cpu_ranks=2", "policy.train_global_batch_size=6", "policy.train_micro_batch_size=3",
    "loss_fn.force_on_policy_ratio=false",
)  # fmt: skip
BACKENDS = {
    "dtensor": (),
    "megatron": (
        "policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true",
        "policy.megatron_cfg.distributed_data_parallel_config.use_distributed_optimizer=true",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def _session():
    with RaySession(cpus=3):
        yield


@pytest.mark.usefixtures("_session")
@pytest.mark.parametrize(
    ("backend", "stops"),
    [
        ("megatron", (1, 2)),
        pytest.param("megatron", (1, 2, 3, 4), marks=pytest.mark.nightly),
        pytest.param("dtensor", (1, 2, 3, 4), marks=pytest.mark.nightly),
    ],
)
def test_a_run_interrupted_after_any_step_is_the_one_that_was_not(tmp_path, backend, stops):
    options = (*OPTIONS, *BACKENDS[backend])
    run_quick(tmp_path / "whole", *options, f"grpo.max_num_steps={stops[-1]}")
    for steps in stops:
        run_quick(tmp_path / "interrupted", *options, f"grpo.max_num_steps={steps}")
    assert_same_run(tmp_path / "interrupted", tmp_path / "whole", stops[-1])
    loaded = [event for event in read_run(tmp_path / "interrupted").events if event["kind"] == "checkpoint_loaded"]
    assert [event["step"] for event in loaded] == list(stops[:-1])
    assert {event["backend"] for event in loaded} == {backend}
    assert all(event["optimizer"] and event["random_states_not_taken"] == [] for event in loaded)
