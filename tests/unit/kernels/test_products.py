import pytest
import torch

from grpo.kernels.products import added_product, product


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("present", [True, False])
def test_products_add_up_in_the_wide_dtype(dtype, present):
    wide = torch.promote_types(dtype, torch.float32)
    left, right = torch.full((300, 2), 1.0, dtype=dtype), torch.full((300, 3), 2.0**-8, dtype=dtype)
    total = torch.full((2, 3), 7.0, dtype=wide) if present else None
    result = added_product(total, left, right, wide)
    assert result.dtype == wide
    assert (result is total) == present
    assert (result == 300 / 256 + (7 if present else 0)).all()  # bfloat16 would stand still at 1


def test_left_is_transposed():
    left, right = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [10.0]])
    assert added_product(None, left, right, torch.float32).tolist() == [[31.0], [42.0]]


def test_no_rows_add_nothing():
    total = torch.ones(2, 3)
    assert added_product(total, torch.empty(0, 2), torch.empty(0, 3), torch.float32).tolist() == [[1.0] * 3] * 2
    assert added_product(None, torch.empty(0, 2), torch.empty(0, 3), torch.float32).tolist() == [[0.0] * 3] * 2


def test_a_product_on_a_cpu_is_of_the_factors_dtype_before_it_is_wide():
    left = torch.tensor([[1.0, 2.0**-9]], dtype=torch.bfloat16)
    assert product(left, torch.ones(2, 1, dtype=torch.bfloat16), torch.float32).tolist() == [[1.0]]
