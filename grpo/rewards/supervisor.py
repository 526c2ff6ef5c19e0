"""The process between the trainer and the verifier's processes: one for each env.

It imports the verifier once, forks the processes that run it, deals samples out to them, and kills. Why so:

* The trainer has threads (torch), so it must not fork; it starts this process with exec, on a bare environment.
* Here is one thread, so that a fork is safe: a killed process is replaced in milliseconds, without imports.
* What a verifier leaves behind (daemons in their own session too) becomes a child of this process and dies with it;
  this process ends when its channel to the trainer closes, hence also when the trainer is killed.

Not `concurrent.futures` (a dead worker breaks the pool), `multiprocessing.Pool` (a dead worker's task is lost and
waited for), loky (no limit per task) or pebble (kills on timeout, but the culprit's whole chunk and not its
children; passes on the whole environment; unpickles what a worker sends).
"""

import gc
import json
import os
import selectors
import signal
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NoReturn

from grpo.errors import RewardError
from grpo.rewards import process, runner
from grpo.rewards.outcome import BrokenFrameError, FrameReader, Kind, Outcome, decode, encode, frame, outcome_reader
from grpo.rewards.verifiers import Verifier, load_verifier

MAX_WINDOW = 64  # samples handed to a process ahead of the one that it works on
WINDOW_SECONDS = 0.005  # of work handed out at once, so that little waits behind a sample that hangs
EXIT_STATUS_SECONDS = 1.0  # from a channel's end to the process's exit status
PARENT_POLL_SECONDS = 2.0
READ_BYTES = 1 << 18


@dataclass(slots=True)
class Sample:
    index: int
    body: bytes
    retried: bool = False  # its process died under it, after others that may have been the cause


@dataclass(slots=True, eq=False)
class Runner:
    """One process that runs the verifier."""

    pid: int
    channel: socket.socket
    reader: FrameReader = field(default_factory=outcome_reader)
    pending: deque[Sample] = field(default_factory=deque)  # the first is the one at work
    unsent: bytearray = field(default_factory=bytearray)
    served: int = 0
    deadline: float = float("inf")
    channel_ended: bool = False


class Supervisor:
    def __init__(
        self,
        trainer: socket.socket,
        verify: Verifier,
        *,
        num_workers: int,
        timeout_s: float,
        memory_limit_mb: int | None,
    ) -> None:
        self._trainer = trainer
        self._trainer_reader = FrameReader()
        self._trainer_pid = os.getppid()
        self._unsent = bytearray()
        self._verify = verify
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._memory_limit_mb = memory_limit_mb
        self._queue: deque[Sample] = deque()
        self._retries: deque[Sample] = deque()
        self._runners: dict[int, Runner] = {}
        self._seconds_per_sample = WINDOW_SECONDS
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()

    def start(self) -> None:
        """Fork the processes."""
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        for _ in range(self._num_workers):
            self._start_runner()

    def serve(self) -> None:
        """Score what the trainer sends until it closes the channel or dies."""
        self._trainer.setblocking(False)
        self._selector.register(self._trainer, selectors.EVENT_READ)
        while self._trainer_lives():
            self._deal()
            for key, events in self._selector.select(self._wait_seconds()):
                if key.fileobj is self._trainer:
                    if not self._talk_to_trainer(events):
                        return
                elif key.fileobj is self._wake_read:
                    self._wake_read.recv(4096)
                    self._reap()
                elif key.data.pid in self._runners:  # else it was killed a moment ago
                    self._talk_to_runner(key.data, events)
            self._expire()

    def _trainer_lives(self) -> bool:
        # A fork of the trainer may hold the channel open after the trainer's end.
        return os.getppid() == self._trainer_pid

    def _wait_seconds(self) -> float:
        deadline = min((each.deadline for each in self._runners.values()), default=float("inf"))
        return min(max(deadline - time.monotonic(), 0.0), PARENT_POLL_SECONDS)

    # -- the trainer

    def _talk_to_trainer(self, events: int) -> bool:
        """False when it has closed the channel."""
        try:
            if events & selectors.EVENT_WRITE:
                del self._unsent[: self._trainer.send(self._unsent)]
                if not self._unsent:
                    self._selector.modify(self._trainer, selectors.EVENT_READ)
            if events & selectors.EVENT_READ:
                data = self._trainer.recv(READ_BYTES)
                if not data:
                    return False
                self._queue.extend(Sample(index, body) for index, body in self._trainer_reader.feed(data))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        return True

    def _report(self, sample: Sample, outcome: Outcome) -> None:
        if not self._unsent:
            self._selector.modify(self._trainer, selectors.EVENT_READ | selectors.EVENT_WRITE)
        self._unsent += encode(sample.index, outcome)

    # -- the processes

    def _start_runner(self) -> None:
        ours, theirs = socket.socketpair()
        supervisor_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_runner(ours, theirs, supervisor_pid)
        theirs.close()
        ours.setblocking(False)
        self._runners[pid] = Runner(pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, self._runners[pid])

    def _become_runner(self, ours: socket.socket, theirs: socket.socket, supervisor_pid: int) -> NoReturn:
        try:
            os.setsid()
            process.die_with_parent(supervisor_pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            ours.close()
            self._selector.close()
            for end in (self._trainer, self._wake_read, self._wake_write):
                end.close()
            for each in self._runners.values():
                each.channel.close()
            process.limit_memory(self._memory_limit_mb, final=True)
            runner.run(theirs, self._verify)
        finally:
            os._exit(70)

    def _deal(self) -> None:
        """Hand out samples: a retried one alone to a fresh process, others in windows."""
        window = int(min(max(WINDOW_SECONDS / self._seconds_per_sample, 1), MAX_WINDOW))
        for each in self._runners.values():
            if each.channel_ended:
                continue
            if self._retries and each.served == 0 and not each.pending:
                self._hand(each, [self._retries.popleft()])
                continue
            if not self._queue or len(each.pending) > window // 2 or (each.pending and each.pending[0].retried):
                continue
            share = -(-len(self._queue) // (2 * len(self._runners)))
            count = min(window - len(each.pending), share)
            self._hand(each, [self._queue.popleft() for _ in range(count)])

    def _hand(self, each: Runner, samples: list[Sample]) -> None:
        if not samples:
            return
        if not each.pending:
            each.deadline = time.monotonic() + self._timeout_s
        each.pending.extend(samples)
        each.unsent += b"".join(frame(sample.index, sample.body) for sample in samples)
        self._send(each)

    def _send(self, each: Runner) -> None:
        try:
            del each.unsent[: each.channel.send(each.unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:  # its end is seen when it is read, or by its exit
            each.unsent.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if each.unsent else 0)
        if self._selector.get_key(each.channel).events != wanted:
            self._selector.modify(each.channel, wanted, each)

    def _talk_to_runner(self, each: Runner, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(each)
        if events & selectors.EVENT_READ:
            self._read(each)

    def _read(self, each: Runner) -> None:
        """Take the outcomes that have come. May replace the process."""
        try:
            data = each.channel.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            # Closed, by a verifier or by its death: how it ended comes with SIGCHLD.
            each.channel_ended = True
            self._selector.unregister(each.channel)
            each.deadline = min(each.deadline, time.monotonic() + EXIT_STATUS_SECONDS)
            return
        served = each.served
        try:
            for index, body in each.reader.feed(data):
                if not self._accept(each, index, body):
                    return
        except BrokenFrameError as error:
            self._lose(each, f"wrote to the pool's own channel ({error})")
            return
        now = time.monotonic()
        if each.served > served:
            seconds = (now - (each.deadline - self._timeout_s)) / (each.served - served)
            self._seconds_per_sample += 0.3 * (seconds - self._seconds_per_sample)
            each.deadline = now + self._timeout_s if each.pending else float("inf")

    def _accept(self, each: Runner, index: int, body: bytes) -> bool:
        """Take one outcome; False when its process was replaced."""
        outcome, replace_process = decode(body)
        if not each.pending or each.pending[0].index != index:
            raise BrokenFrameError(f"an outcome for sample {index}")
        if outcome.kind is Kind.MEMORY and each.served > 0:  # others may have filled it
            self._lose(each, outcome.message, Kind.MEMORY)
            return False
        self._report(each.pending.popleft(), outcome)
        each.served += 1
        if replace_process:
            self._replace(each)
        return not replace_process

    def _lose(self, each: Runner, message: str, kind: Kind = Kind.CRASH) -> None:
        """The sample at work cost its process. If that had served others, it is tried again on a fresh one."""
        if each.pending:
            sample = each.pending.popleft()
            if each.served > 0:
                sample.retried = True
                self._retries.append(sample)
            else:
                self._report(sample, Outcome(kind, message=message))
        self._replace(each)

    def _replace(self, each: Runner) -> None:
        self._queue.extendleft(reversed(each.pending))
        process.kill_family(each.pid)
        del self._runners[each.pid]
        if not each.channel_ended:
            self._selector.unregister(each.channel)
        each.channel.close()
        self._start_runner()

    def _reap(self) -> None:
        """Bury dead children: processes of ours, and orphans of theirs."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            each = self._runners.get(dead.si_pid)
            if each is not None:  # before it is reaped, so that its group's number is not another's yet
                self._bury(each, dead.si_code, dead.si_status)
            os.waitpid(dead.si_pid, os.WNOHANG)

    def _bury(self, each: Runner, code: int, status: int) -> None:
        while not each.channel_ended and self._runners.get(each.pid) is each:
            waiting = len(each.pending)
            self._read(each)
            if len(each.pending) == waiting:
                break
        if self._runners.get(each.pid) is each:
            how = f"exited with status {status}" if code == os.CLD_EXITED else f"was killed by {_signal_name(status)}"
            self._lose(each, f"its process {how}")

    def _expire(self) -> None:
        now = time.monotonic()
        for each in [one for one in self._runners.values() if one.deadline <= now]:
            if each.channel_ended:
                self._lose(each, "closed the pool's own channel")
                continue
            self._report(each.pending.popleft(), Outcome(Kind.TIMEOUT, message=f"timeout after {self._timeout_s:g} s"))
            self._replace(each)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(descriptor: int) -> None:
    """Serve the trainer at the socket `descriptor`: settings (JSON) come first, `{"error": ...}` answers them."""
    trainer = socket.socket(fileno=descriptor)
    process.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = _receive_settings(trainer)
    # Should the trainer die during an import that hangs, nobody reads the channel's end: the kernel's clock does.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, settings["start_timeout_s"] + 1)
    verify, answer = _load(settings)
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        if verify is None:
            trainer.sendall(answer)
            return
        gc.freeze()  # what was imported is shared with the forks
        supervisor = Supervisor(
            trainer,
            verify,
            num_workers=settings["num_workers"],
            timeout_s=settings["timeout_s"],
            memory_limit_mb=settings["memory_limit_mb"],
        )
        supervisor.start()
        trainer.sendall(answer)
        supervisor.serve()
    finally:
        process.kill_descendants()


def _receive_settings(trainer: socket.socket) -> dict[str, Any]:
    length, _ = struct.unpack(">II", trainer.recv(8, socket.MSG_WAITALL))
    settings: dict[str, Any] = json.loads(trainer.recv(length, socket.MSG_WAITALL))
    return settings


def _load(settings: dict[str, Any]) -> tuple[Verifier | None, bytes]:
    """The verifier, if it can be loaded, and what to answer the trainer."""
    process.limit_memory(settings["memory_limit_mb"], final=False)
    try:
        verify = load_verifier(settings["verifier"], settings["kwargs"])
    except RewardError as error:
        return None, frame(0, json.dumps({"error": str(error)}).encode())
    finally:
        process.unlimit_memory()
    answer = {"error": None, "threads": threading.active_count() - 1}
    return verify, frame(0, json.dumps(answer).encode())
