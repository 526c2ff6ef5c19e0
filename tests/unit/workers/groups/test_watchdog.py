"""A process that hangs ends itself with its stacks; one that does not goes on."""

import subprocess
import sys

import pytest

from grpo.workers.groups.watchdog import watched

PROGRAM = """
import ctypes, threading
from grpo.workers.groups.watchdog import watched

def waits():
    threading.Event().wait()

def holds_the_interpreter():
    ctypes.PyDLL(None).sleep(600)

with watched(0.2):
    {name}()
"""
NESTED = """
import threading
from grpo.workers.groups.watchdog import watched

def beside():
    with watched(100.0):
        entered.set()
        threading.Event().wait()

entered = threading.Event()
threading.Thread(target=beside, daemon=True).start()
entered.wait()
with watched(0.2):
    with watched(100.0):
        pass
    threading.Event().wait()
"""


@pytest.mark.parametrize("name", ["waits", "holds_the_interpreter"])
def test_a_process_that_hangs_exits_with_its_stacks(name):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f" in {name}" in ended.stderr


def test_of_several_blocks_the_one_that_ends_first_counts():
    ended = subprocess.run([sys.executable, "-c", NESTED], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert " in beside" in ended.stderr


def test_a_block_that_ends_or_raises_is_forgotten():
    program = """
import threading
from grpo.workers.groups.watchdog import watched
try:
    with watched(0.2):
        raise KeyError
except KeyError:
    with watched(0.2):
        pass
threading.Event().wait(0.6)
"""
    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_the_block_raises_passes():
    with pytest.raises(ZeroDivisionError), watched(100.0):
        raise ZeroDivisionError
