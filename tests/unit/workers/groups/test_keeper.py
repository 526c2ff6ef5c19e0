"""What ends with a session: whatever has a file of its folder open, and nothing else."""

import os
import subprocess
import sys

import psutil
import pytest

from grpo.workers.groups.keeper import clear, processes_of, start_keeper, stop_keeper

HOLD = "import sys; file = open(sys.argv[1], 'w'); print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def holder():
    """Starts a process that keeps a file open."""
    started = []

    def start(path):
        path.parent.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "open\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def pids(folder, but=0):
    return {process.pid for process in processes_of(folder, but=but)}


def test_processes_are_told_by_the_files_that_they_have_open(tmp_path, holder):
    own, other = holder(tmp_path / "run" / "log"), holder(tmp_path / "run2" / "log")
    assert pids(tmp_path / "run") == {own.pid}
    assert pids(tmp_path / "run2") == {other.pid}
    assert pids(tmp_path / "run", but=own.pid) == set()


def test_clearing_ends_them_and_removes_the_folder(tmp_path, holder):
    own, other = holder(tmp_path / "run" / "log"), holder(tmp_path / "run2" / "log")
    clear(tmp_path / "run", but=os.getpid())
    assert own.wait(10) == -9
    assert not (tmp_path / "run").exists()
    assert psutil.Process(other.pid).is_running()


def test_a_keeper_that_is_stopped_clears_but_spares_who_started_it(tmp_path, holder):
    folder = tmp_path / "run"
    left = holder(folder / "log")
    with (folder / "own").open("w"):
        keeper = start_keeper(folder)
        stop_keeper(keeper)
    assert keeper.returncode == 0
    assert left.wait(10) == -9
    assert not folder.exists()


def test_a_keeper_clears_when_its_parent_is_killed(tmp_path, holder):
    left = holder(tmp_path / "run" / "log")
    program = (
        "import sys; from pathlib import Path; from grpo.workers.groups.keeper import start_keeper;"
        "start_keeper(Path(sys.argv[1])); print('started', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "started\n"
        parent.kill()
    assert left.wait(30) == -9
