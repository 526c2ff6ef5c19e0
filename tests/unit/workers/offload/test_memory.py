"""Emptying storages and filling them again, on a CPU: the same code as on a GPU, without its streams."""

import pytest
import torch

from grpo.workers.offload.memory import EmptiedStorages, Stationary, memory_of

CPU = torch.device("cpu")


def tensors():
    flat = torch.arange(10.0)
    return [flat, flat[4:].view(2, 3), torch.full((3,), 2.5, dtype=torch.bfloat16), torch.tensor(7.0)]


def storages(held):
    return [held[0].untyped_storage(), held[2].untyped_storage(), held[3].untyped_storage()]


def test_what_is_offloaded_holds_nothing_and_comes_back_under_every_view():
    memory, held, expected = EmptiedStorages(CPU), tensors(), tensors()
    assert memory.offload("optimizer", storages(held), changed=True) == 40 + 6 + 4
    assert [each.nbytes() for each in storages(held)] == [0, 0, 0]
    assert memory.onload("optimizer", storages(held)) == 50
    assert all(torch.equal(one, other) for one, other in zip(held, expected, strict=True))
    held[0][4] = -1
    assert held[1][0, 0] == -1


def test_what_has_not_changed_is_freed_without_a_copy():
    memory, held = EmptiedStorages(CPU), tensors()
    memory.offload("reference", storages(held), changed=True)
    memory.onload("reference", storages(held))
    held[0].zero_()  # which the caller says has not happened
    assert memory.offload("reference", storages(held), changed=False) == 0
    memory.onload("reference", storages(held))
    assert torch.equal(held[0], torch.arange(10.0))


def test_resources_do_not_share_host_memory():
    memory, one, other = EmptiedStorages(CPU), torch.ones(4), torch.zeros(4)
    memory.offload("one", [one.untyped_storage()], changed=True)
    memory.offload("other", [other.untyped_storage()], changed=True)
    memory.onload("one", [one.untyped_storage()])
    memory.onload("other", [other.untyped_storage()])
    assert (one.sum(), other.sum()) == (4, 0)


def test_what_is_dropped_is_made_again_at_its_size_with_its_views():
    memory, held = EmptiedStorages(CPU), tensors()
    memory.drop("gradients", storages(held))
    assert [each.nbytes() for each in storages(held)] == [0, 0, 0]
    memory.remake("gradients", storages(held))
    held[0].fill_(3)
    assert held[1].sum() == 18


def test_a_cpu_moves_nothing():
    memory, held = Stationary(), tensors()
    assert memory.offload("p", storages(held), changed=True) == memory.onload("p", storages(held)) == 0
    memory.drop("g", storages(held))
    memory.remake("g", storages(held))
    assert all(torch.equal(one, other) for one, other in zip(held, tensors(), strict=True))
    assert memory.release() == {}


def test_the_device_decides():
    assert isinstance(memory_of(CPU), Stationary)
    assert EmptiedStorages(CPU).release() == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_memory_goes_back_to_the_driver():
    device = torch.device("cuda", torch.cuda.current_device())
    memory = memory_of(device)
    big = torch.randn(1 << 28, device=device)  # 1 GiB
    expected, before = big.sum(), torch.cuda.mem_get_info(device)[0]
    assert memory.offload("optimizer", [big.untyped_storage()], changed=True) == 1 << 30
    held = memory.release()
    assert torch.cuda.mem_get_info(device)[0] - before >= 1 << 30
    assert held["driver_gib"] > held["reserved_gib"] >= held["allocated_gib"]
    memory.onload("optimizer", [big.untyped_storage()])
    assert big.sum() == expected
