import torch

from grpo.workers.policy.transfer import to_device


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
