import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from grpo.errors import CheckpointError, TelemetryError
from grpo.telemetry import lock as module
from grpo.telemetry.lock import DirectoryLock


def content(folder):
    return json.loads((folder / ".lock").read_text())


def write(folder, **changes):
    owner = {"host": "elsewhere", "boot": "other", "process_id": 7, "process_started": 1.0, "token": "t"} | changes
    (folder / ".lock").write_text(json.dumps(owner))


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def watching(monkeypatch):
    """The watch of another host's lease, without waiting: a function to be called at every look."""
    now, looks = [1000.0], []

    class Time:
        monotonic = staticmethod(lambda: now[0])

        @staticmethod
        def sleep(seconds):
            now[0] += seconds
            for look in looks:
                look(now[0])

    monkeypatch.setattr(module, "time", Time)
    return looks


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path):
    first = DirectoryLock(tmp_path)
    with pytest.raises(TelemetryError, match=rf"another run writes to .*process {os.getpid()} on .*logger.log_dir"):
        DirectoryLock(tmp_path)
    with pytest.raises(CheckpointError, match=r"with some\.key"):
        DirectoryLock(tmp_path, setting="some.key", error=CheckpointError)
    DirectoryLock(tmp_path, file_name="other").release()
    first.check()
    first.release()
    first.release()
    assert content(tmp_path)["released"]
    DirectoryLock(tmp_path).release()


def test_a_directory_renamed_before_the_lock_was_taken_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()

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


def test_a_killed_owner_of_this_machine_holds_nothing_not_even_through_a_child_that_it_forked(tmp_path):
    code = (
        "import os, signal, sys, time, pathlib\n"
        "from grpo.telemetry.lock import DirectoryLock\n"
        "held = DirectoryLock(pathlib.Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if not child:\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n    os._exit(0)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    try:
        with pytest.raises(TelemetryError, match=f"process {process.pid} on"):
            DirectoryLock(tmp_path)
        process.kill()
        process.wait()
        DirectoryLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_the_lock_of_a_process_that_is_just_dying_is_waited_for(tmp_path, monkeypatch):
    first = DirectoryLock(tmp_path)
    write(tmp_path, **(content(tmp_path) | {"process_id": 2**22 + 5}))
    real, looks = module._locked, []

    def freed_at_the_third_look(descriptor):
        looks.append(descriptor)
        if len(looks) == 3:
            first.release()
        return real(descriptor)

    monkeypatch.setattr(module, "_locked", freed_at_the_third_look)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    DirectoryLock(tmp_path).release()
    assert len(looks) == 3


def test_a_lock_that_outlives_its_process_is_respected(tmp_path, watching):
    first = DirectoryLock(tmp_path)
    write(tmp_path, **(content(tmp_path) | {"process_id": 2**22 + 5}))
    with pytest.raises(TelemetryError, match=f"process {2**22 + 5} on"):
        DirectoryLock(tmp_path)
    first.release()


def test_a_lease_of_another_host_that_lives_is_respected(tmp_path, watching):
    write(tmp_path)
    watching.append(lambda now: write(tmp_path, beat=1) if now > 1010 else None)
    with pytest.raises(TelemetryError, match="process 7 on elsewhere"):
        DirectoryLock(tmp_path)
    assert content(tmp_path)["host"] == "elsewhere"


def test_a_lease_of_another_host_that_does_not_change_is_taken_over(tmp_path, watching, caplog):
    write(tmp_path, beat=41)
    held = DirectoryLock(tmp_path)
    assert content(tmp_path)["host"] != "elsewhere"
    assert "waiting 35 s to see whether it lives" in caplog.text
    held.release()


def test_a_lease_that_was_given_free_or_is_no_lease_does_not_hold_anyone_up(tmp_path, watching):
    watching.append(lambda _: pytest.fail("it waited"))
    write(tmp_path, released=True)
    DirectoryLock(tmp_path).release()
    for text in ("", "123\n", "[]", '{"host": 3}'):
        (tmp_path / ".lock").write_text(text)
        DirectoryLock(tmp_path).release()


def test_without_locks_a_living_process_of_this_machine_is_found(tmp_path, no_locks):
    first = DirectoryLock(tmp_path)
    with pytest.raises(TelemetryError, match="another run writes"):
        DirectoryLock(tmp_path)
    first.release()
    owner = content(tmp_path)
    write(tmp_path, **(owner | {"released": False, "process_started": owner["process_started"] - 5}))
    DirectoryLock(tmp_path).release()  # the process id was given to another since
    write(tmp_path, **(owner | {"released": False, "process_id": 2**22 + 5}))
    DirectoryLock(tmp_path).release()


def test_without_locks_the_last_of_two_that_start_at_once_has_it(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda _: write(tmp_path))
    with pytest.raises(TelemetryError, match="process 7 on elsewhere"):
        DirectoryLock(tmp_path)


def wait_for(condition):
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends


def test_the_owner_shows_that_it_lives_and_notices_when_another_took_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    held = DirectoryLock(tmp_path)
    wait_for(lambda: content(tmp_path)["beat"] >= 2)
    held.check()
    write(tmp_path)
    wait_for(lambda: not held._beating.is_alive())
    with pytest.raises(
        TelemetryError, match=r"process 7 on elsewhere.* took the folder while this process did not run"
    ):
        held.check()
    held.release()
    assert content(tmp_path)["host"] == "elsewhere"


def test_an_owner_that_cannot_show_that_it_lives_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    held = DirectoryLock(tmp_path)

    def stale(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(module, "_write", stale)
    wait_for(lambda: not held._beating.is_alive())
    with pytest.raises(TelemetryError, match="Stale file handle"):
        held.check()
    held.release()
