import pytest
import torch

from grpo import host_memory
from grpo.workers.offload.storages import HostBuffer, bytes_of, storages_of
from tests.support.pretended_ranks import lone_rank

CPU = torch.device("cpu")


def test_each_storage_is_given_once_in_order():
    flat, other = torch.arange(12.0), torch.zeros(3)
    tensors = [flat[6:], other, flat[:6].view(2, 3), torch.zeros(0), torch.zeros(4, device="meta")]
    assert [each.nbytes() for each in storages_of(tensors, CPU)] == [48, 12]


def test_what_another_resource_has_is_left_out():
    flat, own = torch.arange(12.0), torch.zeros(3)
    assert [each.nbytes() for each in storages_of([flat[3:], own], CPU, without=[flat])] == [12]


def test_of_a_dtensor_it_is_what_this_rank_has():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with lone_rank():
        tensor = distribute_tensor(torch.ones(5), init_device_mesh("cpu", (1,)), [Shard(0)])
        (storage,) = storages_of([tensor], CPU)
        assert storage.data_ptr() == tensor.to_local().untyped_storage().data_ptr()


def test_the_bytes_are_those_of_the_whole_storage():
    whole = torch.arange(6, dtype=torch.float32)
    view = bytes_of(whole[4:].untyped_storage())
    assert (view.numel(), view.dtype) == (24, torch.uint8)
    view[:4] = 0
    view.view(torch.float32)[5] = -1.0
    assert whole.tolist() == [0, 1, 2, 3, 4, -1]


SIZES = [[5], [16], [3, 0, 40, 16, 1], [64, 64], [1] * 50]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pieces_cover_every_byte_once_and_do_not_overlap(sizes):
    buffer = HostBuffer(pinned=False, chunk_bytes=16)
    seen = {number: [] for number in range(len(sizes))}
    for value, (number, part, memory) in enumerate(buffer.pieces(sizes)):
        assert memory.numel() == part.stop - part.start > 0
        memory.fill_(value)
        seen[number] += range(part.start, part.stop)
    assert all(seen[number] == list(range(size)) for number, size in enumerate(sizes))
    for value, (_, _, memory) in enumerate(buffer.pieces(sizes)):
        assert (memory == value).all()
    assert buffer.nbytes == sum(sizes)


def test_memory_is_kept_and_grows_only_when_more_is_needed():
    buffer = HostBuffer(pinned=False, chunk_bytes=16)
    counts = []
    for sizes in ([30], [30], [10], [50], [30]):
        for _ in buffer.pieces(sizes):
            pass
        counts.append(buffer.nbytes)
    assert counts == [30, 30, 30, 50, 50]


@pytest.mark.parametrize("pinned", [False, True])
def test_memory_is_made_once_in_chunks_and_locked_before_it_is_used(monkeypatch, pinned):
    locked = []
    monkeypatch.setattr(host_memory, "page_lock", lambda buffer: locked.append(buffer.data_ptr()))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", locked.append)
    buffer = HostBuffer(pinned=pinned, chunk_bytes=1 << 10)
    for sizes in ([3, 1500, 800], [2000, 303]):
        places = {memory.data_ptr() for _, _, memory in buffer.pieces(sizes)}
    assert [each.numel() for each in buffer._chunks] == [1024, 1024, 255]
    assert sorted(locked) == sorted([each.data_ptr() for each in buffer._chunks] + [3] * 3 if pinned else [])
    assert places >= {each.data_ptr() for each in buffer._chunks}


def test_what_cannot_be_locked_is_an_error(monkeypatch):
    def refuse(_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(host_memory, "page_lock", refuse)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(HostBuffer(pinned=True).pieces([5000]))
