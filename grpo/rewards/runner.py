"""The process in which a verifier runs, forked by the supervisor: samples in, one outcome a sample out."""

import os
import pickle
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from grpo.rewards.outcome import FrameReader, Kind, Outcome, encode, outcome_of
from grpo.rewards.verifiers import Verifier

_SIGNALS = (
    signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE,
    signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def run(channel: socket.socket, verify: Verifier) -> NoReturn:
    """Serve `channel` until its other end closes. A process that a verifier has changed asks to be replaced."""
    pid = os.getpid()
    reader = FrameReader()
    before = _surroundings(channel)
    while data := channel.recv(1 << 16):
        for index, sample in reader.feed(data):
            outcome = judge(verify, sample)
            if os.getpid() != pid:  # a child that the verifier forked came back from it too
                os._exit(0)
            changed = outcome.kind is Kind.MEMORY or _has_children() or _surroundings(channel) != before
            channel.sendall(encode(index, outcome, replace_process=changed))
            if changed:  # what follows must not run here: wait for the supervisor to kill
                while channel.recv(1 << 16):
                    pass
                os._exit(0)
    os._exit(0)


def judge(verify: Verifier, sample: bytes) -> Outcome:
    """Run the verifier on one pickled (prompt, completion, answer, record) of the trainer's. Never raises."""
    try:
        prompt, completion, answer, record = pickle.loads(sample)  # noqa: S301 - written by the trainer itself
        return outcome_of(verify(prompt=prompt, completion=completion, answer=answer, record=record))
    except MemoryError:
        return Outcome(Kind.MEMORY, message="out of memory")
    except BaseException as error:  # noqa: BLE001 - sys.exit and KeyboardInterrupt cost one sample too
        return Outcome(Kind.ERROR, message=f"raised {type(error).__name__}: {_text(error)}")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - the user's __str__
        return "(no text: its __str__ raised)"


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return False
    return True


def _surroundings(channel: socket.socket) -> tuple[Any, ...]:
    """What a verifier could leave behind to the next sample's harm, to be compared. Costs microseconds."""
    try:
        files = [os.fstat(number) for number in (0, 1, 2, channel.fileno())]
        directory = os.getcwd()  # noqa: PTH109 - on every sample
    except OSError:
        return (object(),)
    return (
        [(file.st_dev, file.st_ino) for file in files],
        directory,
        [signal.getsignal(number) for number in _SIGNALS],
        [signal.getitimer(timer) == (0.0, 0.0) for timer in _TIMERS],
        threading.active_count(),
        sys.stdout,
        sys.stderr,
    )
