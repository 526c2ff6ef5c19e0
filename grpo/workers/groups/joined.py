"""`python -m grpo.workers.groups.joined ADDRESS NODES SECONDS`: wait until a Ray cluster has all its nodes."""

import sys
import time

from grpo.errors import WorkerError
from grpo.workers.groups.ray_session import RaySession

_POLL_SECONDS = 0.5


def wait_for_nodes(session: RaySession, wanted: int, seconds: float) -> None:
    """Raise WorkerError with the nodes that are there if fewer than `wanted` are after so many seconds."""
    ends = time.monotonic() + seconds
    while len(nodes := session.nodes()) < wanted:
        if time.monotonic() > ends:
            there = ", ".join(node.address for node in nodes) or "none"
            raise WorkerError(f"{len(nodes)} of {wanted} nodes joined Ray within {seconds:.0f} s: {there}")
        time.sleep(_POLL_SECONDS)


def main(address: str, wanted: int, seconds: float) -> None:
    with RaySession(address=address) as session:
        wait_for_nodes(session, wanted, seconds)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    except WorkerError as error:
        sys.exit(f"error: {error}")
