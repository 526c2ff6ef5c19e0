"""The trainer's end of one env's pool: starts its supervisor, sends samples, never waits without a deadline."""

import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.errors import RewardError
from grpo.rewards.outcome import BrokenFrameError, FrameReader, Kind, Outcome, decode, frame, outcome_reader
from grpo.rewards.request import RewardRequest

START_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 10.0
_TURN_S = 0.2  # that `close` allows a call which is under way to end by itself, and between its looks
GRACE_S = 30.0  # beyond the samples' own limit, for a machine that is busy

# All that a verifier sees of the trainer's environment: no token, no key.
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
# One process is one core: libraries of linear algebra must not start threads, least of all before the fork.
SET_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}

# The current directory is importable as with `python -m`, but only after our own imports: it cannot shadow those.
_START = """import json, sys
descriptor, path, directory = json.loads(sys.argv[1])
sys.path[:] = path
from grpo.rewards.supervisor import main
sys.path.insert(0, directory)
main(descriptor)"""

_log = logging.getLogger(__name__)


class SupervisorDiedError(Exception):
    """The supervisor closed its channel, or was silent for too long."""


class VerifierPool:
    """Processes that run one verifier, each sample under a time limit that kills.

    Started by the constructor, which does not wait; `wait_until_ready` does. Calls from several threads take turns.
    """

    def __init__(
        self,
        name: str,
        verifier: str,
        kwargs: Mapping[str, Any],
        *,
        num_workers: int,
        timeout_s: float,
        memory_limit_mb: int | None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._name = name
        self._settings = {
            "verifier": verifier,
            "kwargs": dict(kwargs),
            "num_workers": num_workers,
            "timeout_s": timeout_s,
            "memory_limit_mb": memory_limit_mb,
            "start_timeout_s": start_timeout_s,
        }
        self._start_timeout_s = start_timeout_s
        # A sample that lost its process is tried twice; between two outcomes lies at most that.
        self._silence_s = 2 * timeout_s + GRACE_S
        self._lock = threading.Lock()
        self._ready = self._closing = False
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the supervisor, above all others of the pool."""
        return self._process.pid

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._reader: FrameReader = outcome_reader()
        self._ready = False
        self._start_deadline = time.monotonic() + self._start_timeout_s
        path = [str(Path(entry).absolute()) for entry in sys.path if entry]
        argument = json.dumps([theirs.fileno(), path, str(Path.cwd())])
        environment = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ} | SET_VARIABLES
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                [sys.executable, "-P", "-c", _START, argument],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel.settimeout(self._start_timeout_s)
        with contextlib.suppress(ConnectionError):  # a process that is dead by now is reported when it is waited for
            self._channel.sendall(frame(0, json.dumps(self._settings).encode()))

    def wait_until_ready(self) -> None:
        """Return when the verifier is imported and checked. Raises RewardError, also past the start's deadline."""
        with self._lock:
            self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        where = f"env.{self._name}.verifier {self._settings['verifier']!r}"
        reader = FrameReader()
        answer: dict[str, Any] | None = None
        while answer is None:
            try:
                self._channel.settimeout(max(self._start_deadline - time.monotonic(), 1e-3))
                data = self._channel.recv(1 << 16)
            except TimeoutError as error:
                self._kill()
                raise RewardError(f"{where}: importing it took longer than {self._start_timeout_s:g} s") from error
            except ConnectionError:
                data = b""
            if not data:
                status = self._kill()
                raise RewardError(f"{where}: the process that imports it ended with status {status}")
            for _, body in reader.feed(data):
                answer = json.loads(body)
        if answer["error"]:
            self._kill()
            raise RewardError(f"env.{self._name}: {answer['error']}")
        if answer["threads"]:
            _log.warning(
                "%s starts threads when it is imported: they do not exist in the processes that run it. "
                "Start them in the function.",
                where,
            )
        self._ready = True

    def score(self, requests: Sequence[RewardRequest]) -> list[Outcome]:
        """Outcomes in the order of `requests`. Raises RewardError if the pool cannot be kept running, or is closed."""
        outcomes: dict[int, Outcome] = {}
        samples: dict[int, bytes] = {}
        for index, request in enumerate(requests):
            try:
                samples[index] = frame(index, _pickled(request))
            except Exception as error:  # noqa: BLE001 - whatever the record's own types raise costs this sample
                message = f"cannot be sent to the verifier: {type(error).__name__}: {error}"
                outcomes[index] = Outcome(Kind.ERROR, message=message)
        with self._lock:
            self._resolve(samples, outcomes)
        return [outcomes[index] for index in range(len(requests))]

    def _resolve(self, samples: dict[int, bytes], outcomes: dict[int, Outcome]) -> None:
        """Fill in `outcomes`. A verifier can kill the supervisor: then the rest goes one by one."""
        one_by_one = False
        while pending := [index for index in samples if index not in outcomes]:
            batch = pending[:1] if one_by_one else pending
            self._wait_until_ready()
            try:
                self._exchange(batch, samples, outcomes)
            except (SupervisorDiedError, ConnectionError, BrokenFrameError, TimeoutError) as error:
                self._kill()
                if self._closing:
                    raise RewardError(f"env.{self._name} was closed while it scored") from error
                self._start()
                if one_by_one:
                    outcomes[batch[0]] = Outcome(Kind.CRASH, message=f"killed the pool ({error})")
                one_by_one = True

    def _exchange(self, batch: list[int], samples: dict[int, bytes], outcomes: dict[int, Outcome]) -> None:
        self._channel.settimeout(self._silence_s)
        self._channel.sendall(b"".join(samples[index] for index in batch))
        waiting = set(batch)
        while waiting:
            data = self._channel.recv(1 << 18)
            if not data:
                raise SupervisorDiedError("its supervisor ended")
            for index, body in self._reader.feed(data):
                outcomes[index], _ = decode(body)
                waiting.remove(index)

    def close(self) -> None:
        """End all processes of the pool, within a deadline: what another thread has scored is given up at once."""
        self._closing = True
        ends = time.monotonic() + CLOSE_TIMEOUT_S
        while not self._lock.acquire(timeout=_TURN_S):
            self._signal()  # its thread hears the channel close
            if time.monotonic() > ends:
                _log.warning("env %s: a thread still scores", self._name)
                return
        try:
            self._channel.close()
            try:
                self._process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._kill()
        finally:
            self._lock.release()

    def _signal(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _kill(self) -> int | None:
        """SIGKILL to the supervisor, whose processes die with it. Returns its exit status."""
        self._channel.close()
        self._signal()
        try:
            return self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _log.warning("env %s: process %d does not die", self._name, self._process.pid)
            return None


def _pickled(request: RewardRequest) -> bytes:
    return pickle.dumps((request.prompt, request.completion, request.answer, dict(request.record)), protocol=5)
