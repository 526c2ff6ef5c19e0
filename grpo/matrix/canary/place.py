"""Where a rank of the canary is, by torchrun's or Slurm's variables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_SLURM = {
    "RANK": "SLURM_PROCID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
    "LOCAL_RANK": "SLURM_LOCALID",
    "MASTER_ADDR": "SLURM_LAUNCH_NODE_IPADDR",
}
_FIRST_PORT, _PORTS = 20000, 20000
MOST_NODES = 16  # up to which every pair of nodes is measured


@dataclass(frozen=True)
class Place:
    """One of several ranks."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int


def place_of(environ: Mapping[str, str]) -> Place | None:
    """The rank that a launcher made of this process; None for a process by itself, and a step of one task."""
    named = {name: environ.get(name) or environ.get(slurm) for name, slurm in _SLURM.items()}
    if None in named.values() or int(named["WORLD_SIZE"] or 1) < 2:
        return None
    port = environ.get("MASTER_PORT")
    # All ranks of a step know these two, and two steps of one machine seldom share them.
    own = 64 * int(environ.get("SLURM_JOB_ID", "0")) + int(environ.get("SLURM_STEP_ID", "0"))
    return Place(
        int(named["RANK"] or 0),
        int(named["WORLD_SIZE"] or 1),
        int(named["LOCAL_RANK"] or 0),
        str(named["MASTER_ADDR"]),
        int(port) if port else _FIRST_PORT + own % _PORTS,
    )


def rounds_of_pairs(nodes: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Rounds in which no node is in two pairs; together every pair once, or of many nodes those of neighbours.

    Round-robin by the circle method: one stays, the others move on.
    """
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    count = len(circle) - 1 if len(nodes) <= MOST_NODES else 2
    for _ in range(count if len(nodes) > 1 else 0):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(first, second) for first, second in pairs if first is not None and second is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]
