"""A measured process from outside: started once, then asked for steps while the others wait."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.paired import Block

ROOT = Path(__file__).parent.parent
START_S, ANSWER_S, END_S = 300.0, 600.0, 30.0


class SideError(Exception):
    """A measured process failed or does not answer."""


class Side:
    """One process. What it prints goes to `log`."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, threads: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`, with `--channel` and the descriptor of its end of a socket added to it."""
        self.name = name
        self.versions: dict[str, str] = {}
        self.facts: dict[str, float] = {}
        self._log = log
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("r", encoding="utf-8")
        settings = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        settings |= environment or {}
        with theirs, log.open("wb") as printed:
            self._process = subprocess.Popen(
                [*command, "--channel", str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=ROOT,
                env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Raises SideError if it ends, or takes too long."""
        self.versions = self._receive(START_S)["versions"]

    def go_on(self) -> None:
        """Let it load what it waits with. Raises SideError if it ends, or takes too long to wait."""
        self._receive(START_S)
        self._send({"go_on": True})

    def run(self, steps: int) -> Block:
        """Let it take that many steps. Raises SideError if it ends, or takes too long."""
        self._send({"steps": steps})
        answer = self._receive(ANSWER_S)
        self.facts = answer["facts"]
        return Block(answer["seconds"], answer["parts"])

    def cpu_seconds(self) -> float:
        """Processor time that it and its children have used so far."""
        process = psutil.Process(self._process.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def close(self) -> None:
        """End it: by force where it does not end by itself."""
        self._answers.close()
        self._socket.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except ConnectionError as error:
            raise self._failed("has ended") from error

    def _receive(self, seconds: float) -> Any:
        self._socket.settimeout(seconds)
        try:
            line = self._answers.readline()
        except TimeoutError as error:
            raise self._failed(f"gives no answer in {seconds:g} s") from error
        except ConnectionError as error:
            raise self._failed("has ended") from error
        if not line:
            raise self._failed("has ended")
        return json.loads(line)

    def _failed(self, what: str) -> SideError:
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return SideError(f"{self.name} {what}; the last lines that it printed:\n{last}")
