import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from grpo.checkpoint import files
from grpo.checkpoint.export import export_checkpoint
from grpo.errors import CheckpointError
from grpo.models.loading import load_model, load_tokenizer
from tests.support.saved_model import save_model

IDS = torch.tensor([[7, 301, 4, 99, 0, 12]])


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen2", False), ("qwen3", False), ("llama", False)])
def test_transformers_loads_it_with_the_same_logits(tmp_path, family, tied):
    folder, checkpoint = save_model(tmp_path, family, tied=tied)
    done = export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    assert (done.step, done.weights) == (3, ("model.safetensors",))
    before, after = (load_model(each, dtype=torch.float32) for each in (folder, tmp_path / "hf"))
    assert {name: each.shape for name, each in before.named_parameters()} == {
        name: each.shape for name, each in after.named_parameters()
    }
    assert torch.equal(before(IDS).logits, after(IDS).logits)
    assert load_tokenizer(tmp_path / "hf").encode("abc") == load_tokenizer(folder).encode("abc")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "float32"
    assert ("lm_head.weight" in load_file(tmp_path / "hf" / "model.safetensors")) == (not tied)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_cast_and_cut_into_files_with_an_index(tmp_path, dtype):
    folder, checkpoint = save_model(tmp_path)
    done = export_checkpoint(checkpoint, tmp_path / "hf", dtype=dtype, tokenizer=folder, max_shard_bytes=60_000)
    assert len(done.weights) >= 3
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(done.weights)
    wanted = dict(load_model(folder, dtype=torch.float32).named_parameters())
    assert index["metadata"]["total_size"] == 2 * sum(each.numel() for each in wanted.values())
    found = {name: each for file in done.weights for name, each in load_file(tmp_path / "hf" / file).items()}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], each.to(getattr(torch, dtype))) for name, each in wanted.items())
    assert all(size <= 60_000 + 2000 or each == 1 for each, size in _sizes(tmp_path / "hf", done.weights))
    again = dict(load_model(tmp_path / "hf", dtype=getattr(torch, dtype)).named_parameters())
    assert all(torch.equal(again[name], each) for name, each in found.items())


def _sizes(folder, names):
    return [(len(load_file(folder / name)), (folder / name).stat().st_size) for name in names]


def test_one_tensor_at_a_time_is_in_memory(tmp_path, monkeypatch):
    folder, checkpoint = save_model(tmp_path)
    alive, most = [], []
    real = files.write_file

    def watched(path, pieces):
        def each():
            for piece in pieces:
                alive.append(len(piece))
                most.append(sum(alive))
                yield piece
                alive.pop()

        return real(path, each())

    monkeypatch.setattr(files, "write_file", watched)
    export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    largest = max(each.nbytes for each in load_model(folder, dtype=torch.float32).parameters())
    assert max(most) == largest


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    folder, checkpoint = save_model(tmp_path)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").touch()
    with pytest.raises(CheckpointError, match="hf exists and is not an empty folder"):
        export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    (tmp_path / "hf" / "mine").unlink()
    export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    with pytest.raises(CheckpointError, match="hf exists"):
        export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(CheckpointError, match="of an export that is going on or was killed"):
        export_checkpoint(checkpoint, tmp_path / "other", dtype="float32", tokenizer=folder)


def test_a_damaged_checkpoint_is_not_exported(tmp_path):
    folder, checkpoint = save_model(tmp_path)
    shard = min(checkpoint.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=shard.name):
        export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    assert not list(tmp_path.glob("hf*"))


def test_weights_that_are_not_the_models_are_an_error(tmp_path):
    from grpo.checkpoint.manager import CheckpointManager

    folder, checkpoint = save_model(tmp_path)
    model = json.loads((checkpoint / "manifest.json").read_text())["fingerprint"]["model"]
    manager = CheckpointManager(
        tmp_path / "odd", keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True,
        fingerprint={"model": model},
    )  # fmt: skip
    manager.save(1, {"policy/model.lm_head.weight": torch.zeros(2)}, {}, {})
    with pytest.raises(CheckpointError, match="does not hold the weights of its model"):
        export_checkpoint(tmp_path / "odd" / "step_1", tmp_path / "hf", dtype="float32", tokenizer=folder)
    assert not list(tmp_path.glob("hf*"))


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    folder, checkpoint = save_model(tmp_path)
    real = files.write_file

    def full(path, pieces):
        if path.suffix == ".safetensors":
            raise OSError(28, "No space left on device", str(path))
        return real(path, pieces)

    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(CheckpointError, match=r"cannot export to .*hf: No space left"):
        export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    assert not list(tmp_path.glob("hf*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(CheckpointError, match=r"needed \d+ bytes, free 0 bytes"):
        export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    assert not list(tmp_path.glob("hf*"))


def test_retention_leaves_what_is_exported_alone(tmp_path, monkeypatch):
    from grpo.checkpoint.manager import CheckpointManager

    folder, checkpoint = save_model(tmp_path)
    manager = CheckpointManager(
        checkpoint.parent, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    real, saved = files.write_file, []

    def save_meanwhile(path, pieces):
        if path.name == "model.safetensors":
            monkeypatch.setattr(files, "write_file", real)
            saved.append(manager.save(4, {}, {}, {}).removed)
        return real(path, pieces)

    monkeypatch.setattr(files, "write_file", save_meanwhile)
    export_checkpoint(checkpoint, tmp_path / "hf", dtype="float32", tokenizer=folder)
    assert saved == [()]
    assert manager.prune() == ((checkpoint,), ())
