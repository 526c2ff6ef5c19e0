import pytest

from grpo.errors import TelemetryError
from grpo.telemetry.lock import DirectoryLock


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path):
    first = DirectoryLock(tmp_path)
    with pytest.raises(TelemetryError, match=r"another run writes to .*process \d+"):
        DirectoryLock(tmp_path)
    first.release()
    first.release()
    DirectoryLock(tmp_path).release()


def test_a_directory_renamed_before_the_lock_was_taken_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    import grpo.telemetry.lock as module

    def rename_first(descriptor, operation):
        folder.rename(tmp_path / "run.1")
        folder.mkdir()
        (folder / ".lock").write_text("7\n")

    monkeypatch.setattr(module.fcntl, "flock", rename_first)
    with pytest.raises(TelemetryError, match="another run writes"):
        DirectoryLock(folder)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(TelemetryError, match=r"cannot write .*none/\.lock"):
        DirectoryLock(tmp_path / "none")
