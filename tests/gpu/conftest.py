"""Kernels against their definitions: on a GPU, or in Triton's interpreter with TRITON_INTERPRET=1 where triton is."""

import importlib.util
import os

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
        return torch.device("cpu")
    pytest.skip("needs a GPU, or triton and TRITON_INTERPRET=1")


@pytest.fixture
def kernels(device, monkeypatch):
    """The operations of grpo.kernels, by their kernels on whatever device this is."""
    if device.type == "cpu":
        for module in ("rotary", "swiglu", "logits"):
            found = importlib.import_module(f"grpo.kernels.{module}")
            monkeypatch.setattr(found, "has_kernel", lambda tensor: tensor.dtype != torch.float64)
    return device
