"""A small state per step, and a disk that fails or stops at the n-th change."""

import errno
import os
from pathlib import Path

import pytest
import torch

from grpo.checkpoint.manager import CheckpointManager


class Killed(BaseException):
    """The process is gone: from now on it changes nothing on the disk, not even in its clean-up code."""


class Disk:
    """Counts the changes to a folder made through `os`, and lets one of them fail.

    Other changes are left alone: what earlier tests have left to be collected makes them at any time.

    kill_at: that change does not happen (a write happens by half) and neither does any later one.
    fail_at: that change raises OSError(code); the later ones as well where `forever`.
    """

    killed = Killed
    CHANGES = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")

    def __init__(self, patch, folder):
        self.folder = str(folder)
        self.log = []  # (change, path)
        self.kill_at = self.fail_at = None
        self.code, self.forever = errno.ENOSPC, False
        self.real = {name: getattr(os, name) for name in self.CHANGES}
        for name in self.CHANGES:
            patch.setattr(os, name, self._wrap(name))

    def start(self, **settings):
        self.log = []
        self.kill_at, self.fail_at, self.code, self.forever = None, None, errno.ENOSPC, False
        for key, value in settings.items():
            setattr(self, key, value)

    def _wrap(self, name):
        def change(target, *rest, **keywords):
            if name == "open" and not rest[0] & os.O_CREAT:
                return self.real[name](target, *rest, **keywords)
            path = str(Path(f"/proc/self/fd/{target}").readlink()) if isinstance(target, int) else os.fspath(target)
            if not path.startswith(self.folder):
                return self.real[name](target, *rest, **keywords)
            index = len(self.log)
            self.log.append((name, path))
            if self.kill_at is not None and index >= self.kill_at:
                if index == self.kill_at and name == "write":
                    self.real["write"](target, rest[0][: len(rest[0]) // 2])
                raise Killed
            if self.fail_at is not None and (index == self.fail_at or (self.forever and index > self.fail_at)):
                raise OSError(self.code, os.strerror(self.code), path)
            if name == "fsync":
                return None  # what a killed process has written stays in the page cache
            return self.real[name](target, *rest, **keywords)

        return change


@pytest.fixture
def disk(monkeypatch, tmp_path):
    return Disk(monkeypatch, tmp_path)


@pytest.fixture
def make_manager(tmp_path):
    def make(**changes):
        options = {"keep_latest": 2, "keep_top_k": 1, "metric_name": "accuracy", "higher_is_better": True}
        options |= {"fingerprint": {"model": "tiny", "sizes": {"hidden": 8}}, "max_shard_bytes": 512} | changes
        return CheckpointManager(options.pop("directory", tmp_path / "checkpoints"), **options)

    return make


@pytest.fixture
def state():
    """(step, variant) -> the arguments of `save`; accuracy falls with the step."""

    def make(step, variant=0):
        generator = torch.Generator().manual_seed(1000 * variant + step)
        weight = torch.randn(7, 11, generator=generator)
        tensors = {
            "weight": weight,
            "tied": weight,
            "optimizer/step": torch.tensor(step),
            "rng": torch.randint(0, 256, (13,), dtype=torch.uint8, generator=generator),
            "half": torch.randn(100, generator=generator).bfloat16(),
        }
        return (
            step,
            tensors,
            {"step": step, "variant": variant, "nested": [1, {"x": 0.1}]},
            {"accuracy": 1.0 / (1 + step)},
        )

    return make


@pytest.fixture
def same(state):
    """Whether a loaded checkpoint is what was saved for its step and variant."""

    def compare(loaded):
        step, tensors, values, metrics = state(loaded.step, loaded.values["variant"])
        equal = all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tensors.items())
        return (
            equal
            and loaded.tensors.keys() == tensors.keys()
            and (loaded.step, loaded.values, loaded.metrics)
            == (
                step,
                values,
                metrics,
            )
        )

    return compare
