import json
import os
import threading

import pytest
import torch
from safetensors.torch import load_file

from grpo.checkpoint import files
from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.pieces import Piece, whole_pieces
from grpo.checkpoint.shards import plan_shards, write_shards
from grpo.checkpoint.stored import read_shards
from grpo.errors import CheckpointError


def bits(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def round_trip(folder, tensors, **options):
    plan = plan_shards(whole_pieces(tensors), **options)
    write_shards(folder, plan)
    return read_shards(folder, plan.entries)


DTYPES = [
    *(
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ),
    *(
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint64,
        torch.uint32,
        torch.uint16,
        torch.uint8,
        torch.bool,
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_of_every_dtype_comes_back(tmp_path, dtype):
    raw = torch.arange(96, dtype=torch.uint8).reshape(2, 48) % (2 if dtype == torch.bool else 251)
    tensor = raw.view(dtype)
    loaded = round_trip(tmp_path, {"x": tensor, "odd": torch.zeros(3, dtype=torch.uint8)})["x"]
    assert loaded.dtype == dtype
    assert loaded.shape == tensor.shape
    assert torch.equal(bits(loaded), raw.reshape(-1))


def test_special_floats_and_integers_beyond_doubles_come_back(tmp_path):
    tensors = {
        "float": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
        "int": torch.tensor([2**63 - 1, -(2**63), 2**53 + 1]),
    }
    loaded = round_trip(tmp_path, tensors)
    assert all(torch.equal(bits(loaded[name]), bits(tensor)) for name, tensor in tensors.items())


def test_shapes_and_views_come_back_by_value(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    wave = torch.tensor([1 + 2j, 3 - 1j])
    tensors = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "empty too": torch.zeros(0),
        "transposed": base.T,
        "column": base[:, 1],
        "overlapping": base[1:],
        "expanded": torch.tensor([7.0]).expand(5),
        "conjugate": wave.conj(),
        "negated": wave.conj().imag,
        "parameter": torch.nn.Parameter(base[0]),
    }
    loaded = round_trip(tmp_path, tensors)
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach()), name
        assert type(loaded[name]) is torch.Tensor


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    weight = torch.randn(5, 3)
    tensors = {"embedding": torch.nn.Parameter(weight), "head": weight, "transposed": weight.T, "copy": weight.clone()}
    plan = plan_shards(whole_pieces(tensors))
    assert plan.tensor_bytes == 3 * weight.nbytes
    loaded = round_trip(tmp_path, tensors)
    assert loaded["embedding"] is loaded["head"]
    assert loaded["copy"] is not loaded["head"]
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_shards_stay_below_their_size_and_larger_tensors_get_their_own(tmp_path):
    tensors = {
        "a": torch.zeros(10),
        "big": torch.ones(100),
        "b": torch.zeros(10),
        "c": torch.zeros(5, dtype=torch.int64),
    }
    plan = plan_shards(whole_pieces(tensors), max_shard_bytes=80)
    held = [[piece.name for piece in pieces] for pieces in plan.shards.values()]
    sizes = [sum(tensors[name].nbytes for name in names) for names in held]
    assert all(size <= 80 or names == ["big"] for size, names in zip(sizes, held, strict=True))
    assert 80 in sizes, "small ones share a file"
    assert sorted(name for names in held for name in names) == sorted(tensors)
    loaded = round_trip(tmp_path, tensors, max_shard_bytes=80)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_files_are_plain_safetensors_and_large_pieces_are_whole(tmp_path):
    tensors = {"large": torch.randn(17 * 2**18), "small": torch.arange(3, dtype=torch.int8)}
    plan = plan_shards(whole_pieces(tensors))
    entries = write_shards(tmp_path, plan).files
    (file,) = entries
    loaded = load_file(tmp_path / file)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert entries[file].bytes == (tmp_path / file).stat().st_size


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path):
    plan = plan_shards(whole_pieces({"x": torch.arange(1000)}))
    write_shards(tmp_path, plan)
    loaded = read_shards(tmp_path, plan.entries)["x"]
    file = tmp_path / next(iter(plan.shards))
    with file.open("r+b") as stream:
        stream.seek(-8000, 2)
        stream.write(b"\xff" * 8000)
    assert torch.equal(loaded, torch.arange(1000))


def test_no_tensors_at_all(tmp_path):
    assert round_trip(tmp_path, {}) == {}


class Wrapped(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("x", torch.zeros(2, dtype=torch.complex128), "'x' is torch.complex128"),
        ("x", torch.zeros(2, device="meta"), "'x' is torch.strided on meta"),
        ("x", torch.eye(2).to_sparse(), "'x' is torch.sparse_coo"),
        ("x", torch.zeros(2).as_subclass(Wrapped), "'x' is a Wrapped"),
        ("x", [1.0], "'x' is a list"),
        ("__metadata__", torch.zeros(2), "__metadata__"),
    ],
)
def test_tensors_that_the_format_cannot_hold_are_refused_by_name(name, tensor, reason):
    with pytest.raises(CheckpointError, match=reason):
        plan_shards([Piece("good", (1,), (0,), torch.zeros(1)), Piece(name, (2,), (0,), tensor)])


def test_shards_that_do_not_fit_the_manifest_are_refused(tmp_path):
    tensors = {"x": torch.zeros(4), "y": torch.zeros(4)}
    plan = plan_shards(whole_pieces(tensors))
    write_shards(tmp_path, plan)
    entry = plan.entries["x"]
    file = tmp_path / entry.pieces[0].file
    square = [entry.pieces[0].model_copy(update={"start": [0, 0], "stop": [2, 2]})]
    for change, reason in [({"shape": [2, 2], "pieces": square}, r"\[2, 2\]"), ({"dtype": "F16"}, "F16")]:
        with pytest.raises(DamagedCheckpoint, match=reason):
            read_shards(tmp_path, plan.entries | {"x": entry.model_copy(update=change)})
    with pytest.raises(DamagedCheckpoint, match=r"differ in \['x'\]"):
        read_shards(tmp_path, {"y": plan.entries["y"]})
    with pytest.raises(DamagedCheckpoint, match="itself tied"):
        read_shards(tmp_path, {
            "x": entry, "y": plan.entries["y"],
            "z": entry.model_copy(update={"tied_to": "w"}), "w": entry.model_copy(update={"tied_to": "x"}),
        })  # fmt: skip
    file.write_bytes(b"\x80\x04." * 20)
    with pytest.raises(DamagedCheckpoint, match=file.name):
        read_shards(tmp_path, plan.entries)
    file.unlink()
    with pytest.raises(DamagedCheckpoint, match=file.name):
        read_shards(tmp_path, plan.entries)


def test_every_tensor_starts_at_a_multiple_of_its_width(tmp_path):
    tensors = {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(3), "c": torch.zeros(3, dtype=torch.float64)}
    plan = plan_shards(whole_pieces(tensors))
    (file,) = write_shards(tmp_path, plan).files
    content = (tmp_path / file).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, tensor in tensors.items():
        assert (8 + length + header[name]["data_offsets"][0]) % tensor.element_size() == 0


def test_in_the_background_files_are_written_where_nothing_else_would_run(tmp_path, monkeypatch):
    seen, real = [], files.write_file

    def write_file(path, pieces, *, alone):
        seen.append((os.sched_getscheduler(threading.get_native_id()) == os.SCHED_IDLE, alone))
        return real(path, pieces, alone=alone)

    monkeypatch.setattr(files, "write_file", write_file)
    plan = plan_shards(whole_pieces({"x": torch.arange(5.0)}))
    for name, in_background in (("now", False), ("beside", True)):
        (tmp_path / name).mkdir()
        write_shards(tmp_path / name, plan, in_background=in_background)
    assert seen == [(False, False), (True, True)]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "the caller's own is as it was"
