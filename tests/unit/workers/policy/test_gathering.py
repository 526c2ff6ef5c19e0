"""Messages, copies and memory of gathering, under pretended ranks; numbers of real ones in tests/functional."""

import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.workers.policy import gathering
from grpo.workers.policy.gathering import gathered
from grpo.workers.policy.parallel import ParallelContext
from tests.support.pretended_ranks import pretended_ranks

BF16 = torch.bfloat16


class Counted(TorchDispatchMode):
    """Messages by their tensors, and the names of operations that are no views."""

    def __init__(self):
        super().__init__()
        self.messages, self.operations = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name.startswith("c10d::"):
            self.messages.append(args[0])
        elif not func.is_view:
            self.operations.append((name.removeprefix("aten::"), args))
        return func(*args, **(kwargs or {}))

    def count(self, *names):
        return sum(name in names for name, _ in self.operations)


def parallel(data, tensor):
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("dp", "tp"))
    return ParallelContext(mesh, sequence_parallel=False)


def pairs(context, shapes, cut=None):
    """A parameter of each shape, as FSDP2 and tensor parallelism leave it, and the memory for its whole."""
    found = []
    for shape in shapes:
        placements = (Shard(0), Replicate() if cut is None else Shard(cut))
        parameter = distribute_tensor(torch.randn(shape), context.mesh, placements, src_data_rank=None)
        found.append((parameter, torch.zeros(shape, dtype=BF16)))
    return found


@pytest.mark.parametrize("rank", [0, 3])
def test_a_bucket_is_one_message_in_the_compute_dtype_into_the_memory_that_is_wanted(rank):
    shapes = [(8, 5), (4,), (12, 3, 2), (16, 1)]
    with pretended_ranks(4, rank):
        context = parallel(4, 1)
        bucket = pairs(context, shapes)
        with Counted() as counted:
            assert list(gathered([bucket], context)) == [None]
    (message,) = counted.messages
    assert [each.data_ptr() for each in message] == [whole.data_ptr() for _, whole in bucket], "nothing in between"
    assert {each.dtype for each in message} == {BF16}
    copies = [args for name, args in counted.operations if name == "copy_"]
    assert len(copies) == len(counted.operations) == len(shapes), "each shard is rounded once, and nothing is allocated"
    for (target, source, *_), (parameter, whole) in zip(copies, bucket, strict=True):
        assert source.dtype == torch.float32
        assert target.numel() * 4 == whole.numel()
        assert target.data_ptr() == whole[rank * len(whole) // 4 :].data_ptr()
        assert torch.equal(target, parameter.to_local().to(BF16))


@pytest.mark.parametrize(("cut", "messages", "allocations"), [(0, 2, 0), (1, 2, 2)])
def test_tensor_parallel_parts_follow_in_a_second_message(cut, messages, allocations):
    with pretended_ranks(4, 1):
        context = parallel(2, 2)
        bucket = pairs(context, [(8, 6), (12, 4)], cut)
        with Counted() as counted:
            list(gathered([bucket], context))
    assert len(counted.messages) == messages
    assert counted.count("new_empty", "empty", "zeros", "new_zeros") == allocations
    assert sum(each.numel() for each in counted.messages[0]) * 2 == sum(whole.numel() for _, whole in bucket)
    assert sum(each.numel() for each in counted.messages[1]) == sum(whole.numel() for _, whole in bucket)


def test_rows_that_do_not_divide_go_through_memory_of_their_own():
    with pretended_ranks(4, 3):
        context = parallel(4, 1)
        bucket = pairs(context, [(8, 2), (7, 2)])
        with Counted() as counted:
            list(gathered([bucket], context))
    assert len(counted.messages) == 1
    even, odd = counted.messages[0]
    assert (even.data_ptr(), odd.data_ptr() == bucket[1][1].data_ptr()) == (bucket[0][1].data_ptr(), False)
    assert [tuple(each.shape) for each in counted.messages[0]] == [(8, 2), (8, 2)]


def test_a_rank_alone_sends_nothing():
    with pretended_ranks(1):
        context = parallel(1, 1)
        bucket = pairs(context, [(3, 2)])
        with Counted() as counted:
            list(gathered([bucket], context))
    assert counted.messages == []
    assert torch.equal(bucket[0][1], bucket[0][0].to_local().to(BF16))


def test_the_next_bucket_is_under_way_before_one_is_waited_for_and_no_bucket_is_full_before_that(monkeypatch):
    told, sent = [], itertools.count()

    class Message:
        def __init__(self):
            self.number = next(sent)

        def wait(self):
            told.append(f"wait {self.number}")

    monkeypatch.setattr(gathering, "_exchange", lambda joins, group: Message())
    with pretended_ranks(2):
        context = parallel(2, 1)

        def buckets():
            for number in range(3):
                told.append(f"ask {number}")
                yield pairs(context, [(4, 2)])

        for number, _ in enumerate(gathered(buckets(), context)):
            told.append(f"full {number}")
    assert told == ["ask 0", "ask 1", "wait 0", "full 0", "ask 2", "wait 1", "full 1", "wait 2", "full 2"]
