"""The instrument itself: tests/support/ledger.py."""

import gc

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.support.ledger import FREED, GPU, HOST, PRETEND_GPU, Ledger, MixedResidenceError, PretendMemory
from tests.support.pretended_ranks import lone_rank


@pytest.fixture
def ledger():
    with Ledger() as active:
        yield active


def on(ledger, residence, *shape):
    tensor = torch.ones(*shape or (3,))
    ledger.mark([tensor], residence)
    return tensor


def test_what_is_made_or_sent_there_is_on_the_gpu_and_so_is_what_comes_of_it(ledger):
    made, sent = torch.zeros(3, device=PRETEND_GPU), torch.ones(3).to(PRETEND_GPU)
    anywhere = torch.ones(3)
    assert [ledger.where(each) for each in (made, sent, anywhere)] == [GPU, GPU, None]
    results = [made + anywhere, made.view(3, 1), torch.zeros_like(sent), torch.stack([anywhere, sent]), sent.double()]
    assert [ledger.where(each) for each in results] == [GPU] * 5


def test_the_operation_of_the_report_names_both_devices(ledger):
    moved, gradient = on(ledger, HOST), on(ledger, GPU)
    with pytest.raises(MixedResidenceError, match=r"at least two devices, cuda:0 and cpu! \(in aten::lerp_"):
        moved.lerp_(gradient, 0.1)
    assert torch.equal(moved, torch.ones(3))


@pytest.mark.parametrize("operation", [
    lambda a, b: a + b, lambda a, b: torch.cat([a, b]), lambda a, b: torch._foreach_add_([a], [b]), torch.dot,
    lambda a, b: a.index_put_((torch.tensor([0, 1, 2]),), b),
])  # fmt: skip
@pytest.mark.parametrize("swapped", [False, True])
def test_operations_do_not_mix_residences(ledger, operation, swapped):
    operands = [on(ledger, HOST), on(ledger, GPU)]
    with pytest.raises(MixedResidenceError):
        operation(*operands[:: -1 if swapped else 1])


def test_copies_go_between_them_and_scalars_may_stay_on_the_host(ledger):
    host, device, scalar = on(ledger, HOST), on(ledger, GPU), torch.tensor(2.0)
    ledger.mark([scalar], HOST)
    host.copy_(device)
    device.copy_(host)
    assert (ledger.where(host), ledger.where(device)) == (HOST, GPU)
    assert ledger.where(device * scalar) == GPU
    with pytest.raises(MixedResidenceError):
        torch._foreach_mul_([device], scalar)


def test_a_backward_pass_is_watched(ledger):
    weight = torch.ones(3, device=PRETEND_GPU).requires_grad_()
    loss = (weight * 2).sum()
    loss.backward()
    assert ledger.where(weight.grad) == GPU
    ledger.mark([weight.grad], HOST)
    with pytest.raises(MixedResidenceError):
        (weight * 2).sum().backward()


def test_what_is_freed_can_be_looked_at_and_not_used(ledger):
    tensor, memory = on(ledger, GPU), PretendMemory(ledger)
    storages = [tensor.untyped_storage()]
    memory.offload("t", storages, changed=True)
    view = tensor.detach()[1:].view(2, 1)
    for use in (lambda: view + 1, view.clone, lambda: torch.ones(3).copy_(tensor), lambda: tensor.copy_(torch.ones(3))):
        with pytest.raises(MixedResidenceError, match="offloaded"):
            use()
    memory.onload("t", storages)
    assert (ledger.where(tensor), view.sum()) == (GPU, 2)
    memory.drop("t", storages)
    assert ledger.where(tensor) == FREED
    memory.remake("t", storages)
    assert tensor.isnan().all(), "its content is lost"


def test_a_storage_in_the_place_of_another_is_not_taken_for_it(ledger):
    with ledger.paused():
        addresses = set()
        for _ in range(200):
            tensor = torch.ones(1000)
            ledger.mark([tensor], HOST)
            addresses.add(tensor.untyped_storage()._cdata)
            del tensor
            gc.collect(0)
            new = torch.ones(1000)
            assert ledger.where(new) is None
            del new
        assert len(addresses) == 200, "an address is not used again while the ledger has an entry for it"


def test_dtensors_are_known_by_what_this_rank_has(ledger):
    with lone_rank():
        mesh = init_device_mesh("cpu", (1,))
        one, other = (distribute_tensor(torch.ones(4), mesh, [Shard(0)]) for _ in range(2))
        ledger.mark([one], GPU)
        ledger.mark([other], HOST)
        with pytest.raises(MixedResidenceError):
            one + other


def test_only_its_own_block_and_thread_are_watched():
    with Ledger() as ledger:
        host, device = on(ledger, HOST), on(ledger, GPU)
    assert torch.equal(host + device, torch.full((3,), 2.0))
