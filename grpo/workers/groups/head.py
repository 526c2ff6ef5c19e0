"""Whether Ray's head is there: without it no worker can be started, found again or ended.

Ray itself looks for a lost head for a minute, in which calls go on, and then ends every process of the cluster, the
trainer too, without an error that anyone could catch.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field

from grpo.errors import WorkerError

OWN_SECONDS = 3.0  # a Ray of this run's own has a head that no one starts again
CLUSTER_SECONDS = 30.0  # a cluster's may be started again and take up where it was
_POLL_SECONDS = 1.0


class HeadLostError(WorkerError):
    """Ray's head does not answer any more. All that the run has in Ray has ended, or does when Ray notices."""

    exit_code = 1


@dataclass
class HeadWatch:
    """Asks the head for a connection every second, on a thread of its own, until `stop`."""

    address: str  # host:port
    limit_s: float  # for which it may be away
    _cause: str | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str | None:
        """What is wrong, once the head has been away for too long."""
        return self._cause

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._stopped.wait(_POLL_SECONDS):
            error = _refusal(self.address)
            if error is None:
                seen = time.monotonic()
            elif time.monotonic() - seen > self.limit_s:
                self._cause = (
                    f"Ray's head (gcs_server at {self.address}) has not answered for {self.limit_s:g} s ({error}): it "
                    "was killed, ran out of memory, or its node is down"
                )
                return


def _refusal(address: str) -> OSError | None:
    """Why nobody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_POLL_SECONDS).close()
    except OSError as error:
        return error
    return None
