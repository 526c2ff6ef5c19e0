"""How large the logits are that a piece of code makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Widest(TorchDispatchMode):
    """Rows and width of every float32 or wider result that is as wide as the vocabulary or as a rank's part of it."""

    def __init__(self, widths):
        super().__init__()
        self.widths, self.shapes = widths, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in [] if func.is_view else tree_leaves(result):
            wide = type(each) is torch.Tensor and each.dtype in {torch.float32, torch.float64}
            if wide and each.ndim >= 2 and each.shape[-1] in self.widths:
                self.shapes.add((each.numel() // each.shape[-1], each.shape[-1]))
        return result
