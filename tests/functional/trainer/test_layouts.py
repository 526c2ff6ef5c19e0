"""Every layout of both backends through the whole trainer, in workers; at night."""

import itertools

import pytest

from tests.support.run_metrics import compare_runs
from tests.support.small_run import run_small

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("shared_ray"),
]
BATCHING = {
    "static": [],
    "dynamic": ["policy.dynamic_batching.enabled=true"],
    "packed": ["policy.sequence_packing.enabled=true"],
}
LAYOUTS = {"pytorch": (4, 1), "megatron": (2, 2)}  # most data and pipeline parallel ranks
CELLS = [
    {"backend": backend, "data": data, "tensor": tensor, "pipeline": pipeline, "sequence": sequence}
    for backend, (most, stages) in LAYOUTS.items()
    for data, tensor, pipeline, sequence in itertools.product((1, 2, 4), (1, 2), (1, 2), (False, True))
    if (tensor > 1 or not sequence) and data * tensor * pipeline > 1 and data <= most and pipeline <= stages
]


@pytest.fixture(scope="module", params=list(BATCHING))
def batching(request, tmp_path_factory):
    """Overrides, and a run of one process with them."""
    overrides = [
        "loss_fn.force_on_policy_ratio=false", "loss_fn.reference_policy_kl_penalty=0.1",
        "policy.train_global_batch_size=12", "policy.train_micro_batch_size=2", "grpo.max_num_steps=2",
        "checkpointing.enabled=false", *BATCHING[request.param],
    ]  # fmt: skip
    directory = tmp_path_factory.mktemp("runs") / request.param
    run_small(directory, *overrides)
    return overrides, directory


def layout_of(cell):
    ranks = cell["data"] * cell["tensor"] * cell["pipeline"]
    if cell["backend"] == "pytorch":
        return [
            f"cluster.cpu_ranks={ranks}", f"policy.dtensor_cfg.tensor_parallel_size={cell['tensor']}",
            f"policy.dtensor_cfg.sequence_parallel={cell['sequence']}",
        ]  # fmt: skip
    return [
        f"cluster.cpu_ranks={ranks}", "policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true",
        f"policy.megatron_cfg.tensor_model_parallel_size={cell['tensor']}",
        f"policy.megatron_cfg.pipeline_model_parallel_size={cell['pipeline']}",
        f"policy.megatron_cfg.sequence_parallel={cell['sequence']}",
    ]  # fmt: skip


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell.values())))
def test_a_run_in_this_layout_is_that_of_one_process(tmp_path, batching, cell):
    overrides, alone = batching
    run_small(tmp_path / "ranks", *overrides, *layout_of(cell))
    compare_runs(tmp_path / "ranks", alone)
