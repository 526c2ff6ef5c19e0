import numpy as np
import torch

from grpo.workers.policy.transfer import to_device, together


def test_on_a_cpu_nothing_is_copied():
    tensor = torch.arange(3)
    assert to_device(tensor, torch.device("cpu")) is tensor


def test_to_another_device_it_is_a_copy_from_pinned_memory_that_nobody_waits_for():
    asked = []

    class Recorded(torch.Tensor):
        def pin_memory(self):
            asked.append("pin")
            return self

        def to(self, device, *, non_blocking=False):
            asked.append((device.type, non_blocking))
            return self

    to_device(torch.arange(3).as_subclass(Recorded), torch.device("cuda"))
    assert asked == ["pin", ("cuda", True)]


def test_arrays_on_a_cpu_are_not_copied():
    arrays = {"rows": np.arange(6).reshape(2, 3), "one": np.arange(1)}
    moved = together(arrays, torch.device("cpu"))
    assert {name: each.data_ptr() for name, each in moved.items()} == {
        name: each.__array_interface__["data"][0] for name, each in arrays.items()
    }
    assert moved["rows"].shape == (2, 3)


def test_arrays_go_to_another_device_in_one_copy_from_pinned_memory(monkeypatch):
    asked = []

    class Recorded(torch.Tensor):
        def to(self, device, *, non_blocking=False):
            asked.append((device.type, non_blocking, self.numel()))
            return self.as_subclass(torch.Tensor)

    make = torch.empty

    def empty(*size, pin_memory, dtype):
        assert pin_memory
        return make(*size, dtype=dtype).as_subclass(Recorded)

    monkeypatch.setattr(torch, "empty", empty)
    arrays = {"rows": np.arange(6).reshape(2, 3), "none": np.zeros(0, dtype=np.int64), "last": np.arange(7, 9)}
    moved = together(arrays, torch.device("cuda"))
    assert asked == [("cuda", True, 8)]
    for name, each in arrays.items():
        assert moved[name].shape == each.shape
        assert np.array_equal(moved[name].numpy(), each)
