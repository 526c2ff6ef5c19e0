"""`python -m grpo.workers.groups.joined ADDRESS NODES SECONDS [FOLDER]`: wait until a Ray cluster has all its nodes.

A file `NAME.bad` in the folder says that the node of this name will not come.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from grpo.errors import WorkerError
from grpo.workers.groups.ray_session import RaySession

_POLL_SECONDS = 0.5


def wait_for_nodes(session: RaySession, wanted: int, seconds: float, absent: Callable[[], list[str]] = list) -> None:
    """Raise WorkerError with the nodes that are there if fewer than `wanted` are after so many seconds.

    `absent` names nodes that will not come; then there is nothing to wait for.
    """
    ends = time.monotonic() + seconds
    while len(nodes := session.nodes()) < wanted:
        if lost := absent():
            raise WorkerError(f"{', '.join(lost)} will not join Ray")
        if time.monotonic() > ends:
            there = ", ".join(node.address for node in nodes) or "none"
            raise WorkerError(f"{len(nodes)} of {wanted} nodes joined Ray within {seconds:.0f} s: {there}")
        time.sleep(_POLL_SECONDS)


def main(address: str, wanted: int, seconds: float, folder: str | None = None) -> None:
    def absent() -> list[str]:
        return [] if folder is None else sorted(path.stem for path in Path(folder).glob("*.bad"))

    with RaySession(address=address) as session:
        wait_for_nodes(session, wanted, seconds, absent)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:5])
    except WorkerError as error:
        sys.exit(f"error: {error}")
