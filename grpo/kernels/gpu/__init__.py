"""Triton kernels of float32 and narrower tensors on a GPU. Import these modules only there: they need triton."""
