"""How much memory a piece of code has made and still holds, at most."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Bytes of the storages that operations have made since it was entered and that are still there: the most."""

    def __init__(self):
        super().__init__()
        self._live, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {_key(each) for each in tree_leaves((args, kwargs)) if _plain(each)}
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if _plain(each) and (key := _key(each)) not in given and key not in self._live:
                storage = each.untyped_storage()
                self._live[key] = StorageWeakRef(storage), storage.nbytes()
        self._live = {key: held for key, held in self._live.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._live.values()))
        return result


def _plain(value):
    return type(value) in {torch.Tensor, torch.nn.Parameter}


def _key(tensor):
    return tensor.untyped_storage()._cdata
