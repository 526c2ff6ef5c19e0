"""Room for the ranks of a group: which node each goes to, or at once what the cluster cannot give."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from grpo.config import layout
from grpo.config.schema import Config
from grpo.errors import WorkerError
from grpo.workers.groups.ray_session import Node, RaySession

_POLL_SECONDS = 0.2
_BUSY_SECONDS = 10.0  # what an ended group had held comes back within a second or two
_SMALLEST_SHARE = 10_000  # Ray counts resources in parts so small
_NODE_LABEL = "ray.io/node-id"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Slot:
    """Where a rank runs."""

    rank: int
    node_id: str
    address: str
    node_rank: int
    local_rank: int
    local_world_size: int


@dataclass(frozen=True)
class Room:
    """Places of a reservation for the ranks of one group; several groups may have the same ones."""

    reservation: Reservation
    bundles: tuple[int, ...]  # of the reservation's ranks, by the group's
    share: float  # of what is reserved there, for each rank

    @property
    def session(self) -> RaySession:
        return self.reservation.session

    @property
    def world_size(self) -> int:
        return len(self.bundles)

    @property
    def slots(self) -> list[Slot]:
        """Where the ranks run, counted within the group."""
        return _slots([self.reservation.slots[bundle] for bundle in self.bundles])

    def options(self, rank: int) -> dict[str, Any]:
        """As `Reservation.options`."""
        return self.reservation.options(self.bundles[rank], share=self.share)


def assign(
    nodes: Sequence[Node], world_size: int, need: Mapping[str, float], ranks_per_node: int | None, *, free: bool
) -> list[Node] | None:
    """The node of each rank, all ranks of a node in a row; None when there is no room.

    Args:
        nodes: in the order in which they are filled.
        world_size: ranks.
        need: what one rank takes, by resource.
        ranks_per_node: exactly so many on each node that is used; None: as few nodes as the order allows.
        free: count what is free now, rather than all that the nodes have.
    """
    room = {node.node_id: _room(node.free if free else node.total, need) for node in nodes}
    if ranks_per_node is None:
        alone = [node for node in nodes if room[node.node_id] >= world_size][:1]
        chosen = [node for node in (alone or nodes) for _ in range(room[node.node_id])]
    else:
        chosen = [node for node in nodes if room[node.node_id] >= ranks_per_node for _ in range(ranks_per_node)]
    return chosen[:world_size] if len(chosen) >= world_size else None


def _room(has: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(int((has.get(name, 0.0) + 1e-6) / amount) for name, amount in need.items())


class Reservation:
    """Resources of the cluster, held for `world_size` ranks until `release`. Groups may share them: see `Room`."""

    def __init__(
        self,
        session: RaySession,
        world_size: int,
        *,
        gpus_per_worker: int = 0,
        cpus_per_worker: float = 1,
        ranks_per_node: int | None = None,
        nodes: int = 1,
        join_deadline_s: float = 0.0,
        deadline_s: float = 60.0,
    ) -> None:
        """Reserve.

        Args:
            session: the cluster.
            world_size: ranks.
            gpus_per_worker: of each rank.
            cpus_per_worker: of each rank.
            ranks_per_node: exactly so many on each node; None: as few nodes as will do.
            nodes: that the cluster is to have in the end.
            join_deadline_s: seconds that they may take to come up; a cluster that has them all is not waited for.
            deadline_s: seconds that Ray may take.

        Raises:
            WorkerError: the cluster is too small, at once; or others hold what is needed, after ten seconds or
                `deadline_s` if that is less. It says what is wanted and, per node, what there is and what is free.
        """
        assert world_size > 0, world_size
        assert ranks_per_node is None or world_size % ranks_per_node == 0, (world_size, ranks_per_node)
        self.session = session
        self.world_size = world_size
        self._need = {"CPU": float(cpus_per_worker)} | ({"GPU": float(gpus_per_worker)} if gpus_per_worker else {})
        joined = _poll(lambda: len(session.nodes()) >= nodes or None, join_deadline_s)
        missing = "" if joined else f" ({nodes} nodes were waited for, {join_deadline_s:g} s)"
        chosen = self._choose(ranks_per_node, min(deadline_s, _BUSY_SECONDS), missing)
        self.slots = _slots(chosen)
        self._group: Any = self._reserve(deadline_s)

    def options(self, rank: int, *, share: float = 1.0) -> dict[str, Any]:
        """Of a Ray actor that is to run where `rank` runs, with this share of what is reserved there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": self._need["CPU"] * share,
            "num_gpus": self._need.get("GPU", 0.0) * share,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=rank
            ),
        }

    def release(self) -> None:
        """Give the resources back; more than once does no harm. Actors that still use them are killed."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if self._group is not None and ray.is_initialized() and self.session.lost is None:
            remove_placement_group(self._group)
        self._group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _choose(self, ranks_per_node: int | None, deadline_s: float, missing: str) -> list[Node]:
        nodes = self.session.nodes()
        wanted = _wanted(self.world_size, self._need, ranks_per_node)
        if assign(nodes, self.world_size, self._need, ranks_per_node, free=False) is None:
            raise WorkerError(f"the Ray cluster is too small: wanted {wanted}; present: {_present(nodes)}{missing}")

        def free() -> list[Node] | None:
            return assign(self.session.nodes(), self.world_size, self._need, ranks_per_node, free=True)

        chosen = _poll(free, deadline_s)
        if chosen is None:
            raise WorkerError(
                f"the Ray cluster is busy: wanted {wanted}, and others held too much of it for {deadline_s:g} s; "
                f"present: {_present(self.session.nodes())}"
            )
        return chosen

    def _reserve(self, deadline_s: float) -> Any:
        from ray.util.placement_group import placement_group, remove_placement_group

        nodes = [slot.node_id for slot in self.slots]
        group = placement_group(
            [dict(self._need) for _ in nodes],
            strategy="STRICT_PACK" if len(set(nodes)) == 1 else "PACK",
            bundle_label_selector=[{_NODE_LABEL: node} for node in nodes],
        )
        if not group.wait(timeout_seconds=deadline_s):
            remove_placement_group(group)
            raise WorkerError(
                f"Ray did not place {_wanted(self.world_size, self._need, None)} within {deadline_s:g} s; present: "
                f"{_present(self.session.nodes())}"
            )
        return group


def _slots(chosen: Sequence[Node | Slot]) -> list[Slot]:
    order = list(dict.fromkeys(node.node_id for node in chosen))
    slots: list[Slot] = []
    for rank, node in enumerate(chosen):
        local = sum(slot.node_id == node.node_id for slot in slots)
        size = sum(each.node_id == node.node_id for each in chosen)
        slots.append(Slot(rank, node.node_id, node.address, order.index(node.node_id), local, size))
    return slots


def _poll(ask: Callable[[], _Answer | None], deadline_s: float) -> _Answer | None:
    """What `ask` answers, at the latest after `deadline_s`."""
    ends = time.monotonic() + deadline_s
    while (answer := ask()) is None and time.monotonic() < ends:
        time.sleep(_POLL_SECONDS)
    return answer


def _wanted(world_size: int, need: Mapping[str, float], ranks_per_node: int | None) -> str:
    spread = "" if ranks_per_node is None else f", {ranks_per_node} on each of {world_size // ranks_per_node} nodes"
    return f"{world_size} x ({_amounts(need)}){spread}"


def _present(nodes: Sequence[Node]) -> str:
    def one(node: Node) -> str:
        return f"node {node.address} ({node.node_id[:8]}) has {_amounts(node.total)}, free {_amounts(node.free)}"

    return "; ".join(map(one, nodes)) or "no living node"


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))


@dataclass(frozen=True)
class Rooms:
    """Of a run: where the ranks of its policy go, and those of its engines."""

    policy: Room
    engines: Room


@contextmanager
def reserved_for(config: Config) -> Iterator[Rooms | None]:
    """`rooms_for`, or None with `cluster.launcher=in_process`."""
    if config.cluster.launcher != "ray":
        yield None
        return
    with rooms_for(config) as rooms:
        yield rooms


@contextmanager
def rooms_for(config: Config) -> Iterator[Rooms]:
    """Ray and room in it for all that `config` runs in workers.

    Raises:
        WorkerError: Ray is not installed, no cluster answers, or it does not have what is needed.
    """
    cluster = config.cluster
    ranks, gpus = cluster.num_nodes * cluster.gpus_per_node or cluster.cpu_ranks, cluster.gpus_per_node
    per_node = ranks // cluster.num_nodes if cluster.num_nodes > 1 else None
    with (
        RaySession(address=cluster.ray_address, cpus=ranks, gpus=gpus) as session,
        Reservation(
            session, ranks, gpus_per_worker=min(1, gpus), ranks_per_node=gpus or per_node,
            nodes=cluster.num_nodes, join_deadline_s=cluster.join_timeout_s, deadline_s=cluster.worker_timeout_s,
        ) as reservation,
    ):  # fmt: skip
        yield divided(reservation, config)


def divided(reservation: Reservation, config: Config) -> Rooms:
    """A reservation between policy and engines.

    Colocated engine rank e has the place of policy rank e, and half of it. Engines of their own have the last GPUs. A
    run on CPUs has nothing to divide: its engines lie beside the training ranks in turn, each engine on one node.
    """
    ranks = layout(config)
    training, places = range(ranks.training_gpus), range(reservation.world_size)
    if config.cluster.gpus_per_node:
        engines = list(places[-ranks.generation_gpus :])
    else:
        engines = _beside(reservation.slots, ranks.engines, ranks.engine_parallel_size)
    most = max(engines.count(place) + (place in training) for place in places)
    share = _SMALLEST_SHARE // most / _SMALLEST_SHARE
    return Rooms(Room(reservation, tuple(training), share), Room(reservation, tuple(engines), share))


def _beside(slots: Sequence[Slot], engines: int, size: int) -> list[int]:
    """For each rank of `engines` of `size` the place that it has: node after node, and in turn within a node."""
    nodes = [
        [slot.rank for slot in slots if slot.node_rank == node] for node in sorted({slot.node_rank for slot in slots})
    ]
    taken = dict.fromkeys(range(len(nodes)), 0)
    places: list[int] = []
    for engine in range(engines):
        node = engine % len(nodes)
        places += [nodes[node][(taken[node] + rank) % len(nodes[node])] for rank in range(size)]
        taken[node] += size
    return places
