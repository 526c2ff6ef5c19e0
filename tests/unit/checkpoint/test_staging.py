import threading

import torch

from grpo import host_memory
from grpo.checkpoint.pieces import Piece, whole_pieces
from grpo.checkpoint.shards import plan_shards, write_shards
from grpo.checkpoint.staging import StagingBuffers
from grpo.checkpoint.stored import read_shards


def tensors(value):
    return {
        "wide": torch.full((3, 5), float(value), dtype=torch.float64),
        "turned": torch.arange(12.0).view(3, 4).T + value,
        "half": torch.full((7,), value, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, value > 1]),
        "step": torch.tensor(float(value)),
        "none": torch.zeros(0, 4),
    }


def test_what_is_staged_is_what_was_there_whatever_happens_to_it_later(tmp_path):
    live = tensors(1)
    plan = plan_shards(whole_pieces(live), max_shard_bytes=100)
    assert len(plan.shards) == 2
    content = StagingBuffers().stage(plan)
    for each in live.values():
        each.zero_()
    stored = read_shards(tmp_path, write_shards(tmp_path, plan, content).tensors)
    expected = tensors(1)
    assert all(torch.equal(stored[name], expected[name]) for name in expected)


def test_buffers_are_made_once_and_hold_the_latest(tmp_path):
    live, buffers = tensors(1), StagingBuffers()
    plan = plan_shards(whole_pieces(live))
    first = buffers.stage(plan)
    addresses = {file: each.data_ptr() for file, each in first.items()}
    for name, each in tensors(2).items():
        live[name].copy_(each)
    second = buffers.stage(plan_shards(whole_pieces(live)))
    assert {file: each.data_ptr() for file, each in second.items()} == addresses
    stored = read_shards(tmp_path, write_shards(tmp_path, plan, second).tensors)
    assert all(torch.equal(stored[name], each) for name, each in tensors(2).items())


def test_a_plan_of_other_sizes_gets_buffers_of_its_own(tmp_path):
    buffers = StagingBuffers()
    buffers.stage(plan_shards(whole_pieces({"a": torch.zeros(4)})))
    plan = plan_shards([Piece("a", (9,), (2,), torch.arange(3.0))])
    content = buffers.stage(plan)
    assert [each.numel() for each in content.values()] == [12]
    assert write_shards(tmp_path, plan, content).tensors["a"].pieces[0].stop == [5]


def test_buffers_are_made_beside_other_work_and_used_by_the_first_save(tmp_path, monkeypatch):
    gate, touched, real = threading.Event(), [], host_memory.touch

    def touch(buffer):
        assert gate.wait(30)
        touched.append(buffer.data_ptr())
        real(buffer)

    monkeypatch.setattr(host_memory, "touch", touch)
    live, buffers = tensors(3), StagingBuffers()
    plan = plan_shards(whole_pieces(live), max_shard_bytes=100)
    buffers.prepare(plan)
    buffers.prepare(plan)
    assert touched == [], "who prepares does not wait"
    gate.set()
    content = buffers.stage(plan)
    assert [each.data_ptr() for each in content.values()] == touched
    stored = read_shards(tmp_path, write_shards(tmp_path, plan, content).tensors)
    assert all(torch.equal(stored[name], each) for name, each in live.items())
    buffers.prepare(plan)
    assert len(touched) == 2, "those that are there are kept"


def test_prepared_buffers_of_another_size_are_made_anew():
    buffers = StagingBuffers()
    buffers.prepare(plan_shards(whole_pieces({"a": torch.zeros(4)})))
    content = buffers.stage(plan_shards(whole_pieces({"a": torch.arange(9.0)})))
    assert [each.view(torch.float32).tolist() for each in content.values()] == [list(range(9))]
