"""The trainer that is killed once: here a script that writes metrics in its place."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from grpo.errors import EXIT_REQUEUE
from grpo.matrix.slurm.interrupt import MARKER, command

# `python -m grpo`, for whoever starts it in this folder.
TRAINER = """
import json, pathlib, signal, subprocess, sys, time
run, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
run.mkdir(exist_ok=True)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(85))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(run / "pids").write_text(json.dumps(child.pid))
for step in range(1, last + 1):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"schema_version": 1, "step": step}) + "\\n")
    if step == 3:
        (run / "waits").touch()
        time.sleep(60 if last > 3 else 0)
child.kill()
sys.exit(7 if last == 2 else 0)
"""


def started(folder, last, after_step=3):
    (folder / "grpo_stand_in.py").write_text(TRAINER)
    run = folder / "run"
    arguments = command(after_step, run, [str(run), str(last)])
    # The same programme, but for what it starts.
    start = (
        "import sys; from grpo.matrix.slurm import interrupt; interrupt.PROGRAM = 'grpo_stand_in'; "
        "sys.argv[0] = 'interrupt'; sys.exit(interrupt.main())"
    )
    return subprocess.Popen([sys.executable, "-c", start, *arguments[1:]], cwd=folder)


def test_it_is_killed_with_all_that_it_started_and_asks_to_be_started_again(tmp_path):
    assert started(tmp_path, 9).wait(timeout=30) == EXIT_REQUEUE
    assert (tmp_path / MARKER).is_file()
    child = json.loads((tmp_path / "run" / "pids").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("last", "code"), [(3, 0), (2, 7)])
def test_the_second_time_it_is_left_alone(tmp_path, last, code):
    (tmp_path / MARKER).touch()
    assert started(tmp_path, last).wait(timeout=30) == code


def test_signals_reach_the_trainer(tmp_path):
    process = started(tmp_path, 9, after_step=5)
    deadline = time.monotonic() + 30
    while not (tmp_path / "run" / "waits").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(10)
    assert process.wait(timeout=30) == EXIT_REQUEUE
    assert not (tmp_path / MARKER).exists()
    psutil.Process(json.loads((tmp_path / "run" / "pids").read_text())).kill()
