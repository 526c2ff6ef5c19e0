"""The end of a measured process that is in the process: takes steps when asked, and says how long they took.

Standard library alone: it is imported in environments that have nothing of this project's.
"""

from __future__ import annotations

import json
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version


class Gate:
    """Stands between two steps: lets as many through as were asked for, then answers with their times and waits.

    Its clock runs from letting a step through to the next call of `enter`, so that nothing a side does between the
    steps, such as logging, is left out.
    """

    def __init__(self, descriptor: int) -> None:
        """Speak JSON lines over a connected socket that the process inherited."""
        self._channel = socket.socket(fileno=descriptor).makefile("rw", encoding="utf-8")
        self._left = 0
        self._steps = 0
        self._started = 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._facts: dict[str, float] = {}

    def ready(self, packages: Sequence[str]) -> None:
        """Say that everything is loaded, and with which versions."""
        self._send({"versions": {name: version(name) for name in packages}})

    def wait(self) -> None:
        """Until the other end has room for what comes. Raises SystemExit when nobody is there any more."""
        self._send({"waiting": True})
        if not self._channel.readline():
            raise SystemExit(0)

    def add(self, part: str, seconds: float) -> None:
        """Seconds of a part of the present step."""
        self._parts[part] += seconds

    def note(self, **facts: float) -> None:
        """What the answer says of the latest step that was logged, besides times."""
        self._facts.update(facts)

    def enter(self) -> None:
        """Before each step; returns when it may be taken. Raises SystemExit when nobody asks any more."""
        if self._left == 0:
            if self._steps:
                self._answer(time.perf_counter() - self._started)
            line = self._channel.readline()
            if not line:
                raise SystemExit(0)
            self._left = self._steps = json.loads(line)["steps"]
            self._parts.clear()
            self._started = time.perf_counter()
        self._left -= 1

    def _answer(self, seconds: float) -> None:
        parts = {part: total / self._steps for part, total in self._parts.items()}
        self._send({"seconds": seconds / self._steps, "parts": parts, "facts": self._facts})

    def _send(self, message: dict[str, object]) -> None:
        print(json.dumps(message), file=self._channel, flush=True)
