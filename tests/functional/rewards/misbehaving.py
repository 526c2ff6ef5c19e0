"""Verifiers that do what a verifier must not. The completion says what; "good <number>" behaves."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# Long enough to outlive any test, and so that a leak is seen.
FOREVER = 10_000
LEFT_BEHIND = {}


class Unprintable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text")


def note(record, pid):
    Path(record["notes"], str(pid)).touch()


def loop(record):
    while True:
        pass


def loop_in_c(record):
    return 10 ** (10**8)


def stop_itself(record):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1.0


def ignore_signals_and_sleep(record):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOREVER)


def segfault(record):
    ctypes.string_at(0)


def exit_hard(record):
    os._exit(3)


def exit_hard_with_child(record):
    fork_child(record)
    os._exit(4)


def fork_child(record):
    pid = os.fork()
    if pid == 0:
        time.sleep(FOREVER)
        os._exit(0)
    note(record, pid)
    return 1.0


def daemonise(record):
    """A grandchild in a session of its own, whose parent is gone."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(FOREVER)
        os.write(write, str(grandchild).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    note(record, int(os.read(read, 20)))
    os.close(read)
    os.close(write)
    return 1.0


def fork_and_return_twice(record):
    os.fork()
    return 1.0


def hang_with_child(record):
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    note(record, process.pid)
    time.sleep(FOREVER)


def eat_memory(record):
    eaten = [bytes(1 << 24) for _ in range(4096)]  # 64 GiB of addresses, no page of which is touched
    return float(len(eaten))


def close_files(record):
    os.closerange(0, 256)
    return 1.0


def write_to_every_file(record):
    for number in range(256):
        try:
            os.write(number, b"\xff" * 64)
        except OSError:
            continue
    return 1.0


def print_garbage(record):
    print("garbage" * 10_000)  # noqa: T201
    sys.stderr.write("\x00" * 10_000)
    os.write(1, b"\x00" * 10_000)
    return 1.0


def close_output_and_return(record):
    sys.stdout.close()
    os.close(2)
    return 1.0


def arm_a_timer(record):
    signal.signal(signal.SIGALRM, lambda *_: os._exit(5))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return 1.0


def leave_a_thread_that_exits(record):
    threading.Thread(target=lambda: os._exit(6) if time.sleep(0.001) is None else None, daemon=True).start()
    return 1.0


def poison_the_process(record):
    LEFT_BEHIND["exit"] = True
    return 1.0


def hoard_memory(record):
    LEFT_BEHIND["memory"] = bytes(400 << 20)
    return 1.0


def change_directory(record):
    os.chdir("/")
    return 1.0


def raise_error(record):
    raise ValueError("bad sample")


def raise_unprintable(record):
    raise Unprintable


def raise_huge_text(record):
    raise ValueError("é" * 1_000_000)


def call_sys_exit(record):
    sys.exit(0)


def interrupt(record):
    raise KeyboardInterrupt


def recurse(record):
    return recurse(record) + 1


def kill_the_pool(record):
    note(record, os.getpid())
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(FOREVER)


RETURNED = {
    "return_nan": float("nan"),
    "return_inf": float("inf"),
    "return_none": None,
    "return_string": "1.0",
    "return_too_large_for_float32": 1e39,
    "return_complex": 1j,
    "return_huge_integer": 10**400,
}


def reward(prompt, completion, answer, record):
    kind, _, number = completion.partition(" ")
    if kind == "good":
        # What every sample may rely on, whatever ran before it.
        if LEFT_BEHIND.get("exit"):
            os._exit(8)
        bytes(150 << 20)
        os.write(1, b".")
        print(".")  # noqa: T201
        assert str(Path.cwd()) == record["directory"]
        return float(number)
    if kind in RETURNED:
        return RETURNED[kind]
    return globals()[kind](record)
