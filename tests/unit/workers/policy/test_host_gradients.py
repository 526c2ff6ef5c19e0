"""Numbers of whole updates with `cpu_offload` are in the parity matrix."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from grpo.workers.policy import host_gradients
from grpo.workers.policy.host_gradients import HostGradients
from tests.support.pretended_ranks import lone_rank


@pytest.fixture
def mesh():
    with lone_rank():
        yield init_device_mesh("cpu", (1,))


def sharded(mesh, values):
    return DTensor.from_local(torch.tensor(values), mesh, [Shard(0)])


def test_micro_batches_are_added_in_their_order_and_what_has_no_gradient_gets_none(mesh):
    first, second, frozen = (nn.Parameter(sharded(mesh, [0.0, 0.0])) for _ in range(3))
    sums = HostGradients([first, second, frozen])
    rounds = [
        ([1e8, 3.0], None),
        ([1.0, 4.0], [0.5, 0.25]),
        ([-1e8, 5.0], [2.0, 2.0]),
    ]
    for _ in range(2):  # an update after the other begins anew
        with sums.adding() as done:
            for one, other in rounds:
                first.grad = sharded(mesh, one)
                second.grad = None if other is None else sharded(mesh, other)
                done()
                assert first.grad is second.grad is None, "FSDP would add to it itself"
        assert first.grad.to_local().tolist() == [0.0, 12.0]
        assert second.grad.to_local().tolist() == [2.5, 2.25]
        assert frozen.grad is None


def test_what_an_update_that_failed_has_taken_is_forgotten(mesh):
    parameter = nn.Parameter(sharded(mesh, [0.0]))
    sums = HostGradients([parameter])

    def update(*values, fails=False):
        with sums.adding() as done:
            for value in values:
                parameter.grad = sharded(mesh, [value])
                done()
            if fails:
                parameter.grad = sharded(mesh, [16.0])  # of a micro-batch that is not done
            assert not fails

    with pytest.raises(AssertionError):
        update(1.0, 2.0, fails=True)
    assert parameter.grad is None
    update(4.0, 8.0)
    assert parameter.grad.to_local().tolist() == [12.0]


def test_a_sum_that_cannot_be_made_ends_the_update(mesh, monkeypatch):
    def fails(_pairs):
        raise RuntimeError("no memory")

    monkeypatch.setattr(host_gradients, "_add", fails)
    parameter = nn.Parameter(sharded(mesh, [0.0]))

    def update():
        with HostGradients([parameter]).adding() as done:
            parameter.grad = sharded(mesh, [1.0])
            done()

    with pytest.raises(RuntimeError, match="no memory"):
        update()
    assert parameter.grad is None
