"""What is planted in a checkpoint's folder is refused by the policy of either backend, and never run."""

import os
import pickle

import pytest
import torch

from grpo.checkpoint import files
from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.layout import MANIFEST
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.manifest import FileEntry, read_manifest
from grpo.checkpoint.rank_state import LocalState
from grpo.checkpoint.reading import open_checkpoint
from grpo.checkpoint.saver import Saver
from grpo.errors import CheckpointError
from tests.functional.checkpoint.resharding_checks import policy_of
from tests.support.policy import random_batch, whole_state

MODEL = ("qwen3", False, "float32")
BACKENDS = {"dtensor": ("dtensor", 1, 1, None), "megatron": ("megatron", 1, 1, "distributed")}


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("vouched", [True, False], ids=["manifest altered too", "manifest as it was"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_planted_pickle_is_refused_by_name(tmp_path, backend, vouched):
    policy, ran = policy_of(MODEL, BACKENDS[backend]), tmp_path / "ran"
    manager = CheckpointManager(
        tmp_path / "saved", keep_latest=9, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    saver = Saver(manager, LocalState(policy), in_background=False)
    saver.stage({}, {})
    (report,) = saver.write(1, {})
    folder, name = report.saved.path, "rank_00000-00000.safetensors"
    content = pickle.dumps(Payload(ran))
    (folder / name).write_bytes(content)
    (folder / ".metadata").write_bytes(content)  # where torch's own format has a pickle
    if vouched:
        manifest = read_manifest(folder)
        entry = FileEntry(bytes=len(content), sha256=files.hash_file(folder / name))
        altered = manifest.model_copy(update={"files": {**manifest.files, name: entry}})
        (folder / MANIFEST).write_bytes(altered.to_json())
    policy.train(random_batch())
    before = whole_state(policy)[0]
    with pytest.raises(DamagedCheckpoint, match=name), open_checkpoint(folder, {}) as opened:
        LocalState(policy).load(opened, optimizer=True)
    with pytest.raises(CheckpointError, match=f"none of the checkpoints.*(\n.*)*{name}"), manager.open_latest():
        pass
    assert not ran.exists()
    after = whole_state(policy)[0]
    assert all(torch.equal(after[each], before[each]) for each in before)
