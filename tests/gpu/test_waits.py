"""What an update and a log-prob pass wait for: once, at their end, however many micro-batches they have."""

import warnings

import pytest
import torch

from benchmarks.gpu.settings import worker_config
from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.work import random_batch
from grpo.workers.policy.dtensor import DTensorPolicy

CAP, PACKS = 64, 5


@pytest.fixture
def policy(device):
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    return DTensorPolicy(SHAPES_BY_NAME["tiny"].build("cuda"), worker_config(CAP, precision="bfloat16"), device="cuda")


@pytest.mark.parametrize("call", ["train", "logprobs"])
def test_a_pass_waits_once(policy, call):
    batch = random_batch(CAP, PACKS, 320)
    work = getattr(policy, call)
    work(batch)  # memory of its own first
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [f"{each.filename}:{each.lineno}" for each in caught if "synchroniz" in str(each.message)]
    waits = [each for each in waits if not each.endswith("torch/cuda/__init__.py")]
    assert len(waits) == 1, waits
