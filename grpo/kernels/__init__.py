"""Operations between a model's matrix products, each one kernel on a GPU. Pure functions of tensors.

Each module defines its operation in plain torch, which is what runs on a CPU and in float64; `gpu` holds the kernels,
in Triton, which are compared with the definitions in tests/gpu.
"""
