import pytest
import torch

from grpo.kernels.dispatch import has_kernel, wide_dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_cpu_runs_the_definitions(dtype):
    assert not has_kernel(torch.zeros(1, dtype=dtype))


def test_operations_compute_in_float32_or_wider():
    assert wide_dtype(torch.zeros(1, dtype=torch.bfloat16)) == torch.float32
    assert wide_dtype(torch.zeros(1, dtype=torch.float64)) == torch.float64
