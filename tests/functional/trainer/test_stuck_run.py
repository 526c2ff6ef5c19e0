"""What is told of a run that does not end."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.stuck_run import crowding, tell_run

STUCK = """
import subprocess, sys, threading
from tests.support.stuck_run import answer_with_stacks
def waits_for_ever():
    threading.Event().wait()
child = subprocess.Popen([sys.executable, "-c", "import time; print('there', flush=True); time.sleep(600)"])
answer_with_stacks()
print("ready", flush=True)
waits_for_ever()
"""
REPOSITORY = Path(__file__).parents[3]


def test_its_processes_their_stacks_and_the_end_of_its_records(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"kind": "the last thing"}\n')
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n", "there\n"}
        told = tell_run(process.pid, tmp_path)
        assert process.poll() is None  # asking has ended nobody
        assert "time.sleep(600)" in told
        assert "did not answer" not in told
    finally:
        for each in [*psutil.Process(process.pid).children(), process]:
            each.kill()
        process.communicate()
    assert "in waits_for_ever" in told
    assert "the last thing" in told
    assert "no rank-0.log" in told
    assert "is gone" in tell_run(process.pid, tmp_path)
    assert crowding() >= 1
