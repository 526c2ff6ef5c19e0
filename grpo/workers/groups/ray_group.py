"""A worker group of Ray actors: one process a rank, a deadline for every call, one error for every failure."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from grpo.errors import WorkerError
from grpo.workers.groups.calls import Call
from grpo.workers.groups.dispatches import Dispatches
from grpo.workers.groups.failures import Death, RankError, Situation, death_reason, is_own, ranks_named
from grpo.workers.groups.head import HeadLostError
from grpo.workers.groups.rank_host import Answer, Diagnosis, Failure, RankHost, Where, worker_stacks
from grpo.workers.groups.ray_session import STOP_SECONDS, RaySession
from grpo.workers.groups.rendezvous import Membership
from grpo.workers.groups.reservation import Reservation, Room, Slot
from grpo.workers.groups.watchdog import GRACE_SECONDS

_GRACE_SECONDS = 3.0  # after an error in a collective: the rank that is its cause may be known a moment later
_DIAGNOSIS_SECONDS = 5.0
_LOOK_SECONDS = 1.0  # after which whoever waits sees that Ray's head is gone
_BESIDE = "beside"  # the thread of a rank on which it works while it answers other calls


class RayGroup:
    """`WorkerGroup` in Ray actors.

    A rank that raises, dies or misses a deadline ends the group: `RankError` names the rank, its node and the cause
    (its own traceback; for a hang, the stacks of the ranks that have not answered), and all processes are ended. So
    does the loss of Ray's head: `HeadLostError`.
    """

    def __init__(
        self,
        make: Callable[..., object],
        arguments: Sequence[object] = (),
        *,
        reservation: Reservation | Room,
        deadline_s: float,
        environment: Mapping[str, str] | None = None,
        ranks_together: int | None = None,
    ) -> None:
        """Start one actor for each rank of the reservation and, in all at the same time, make the worker.

        Args:
            make: class or function that can be imported; called in each process with `arguments`. The process's
                environment has the rank's place by torchrun's names; see `rendezvous.join_process_group`.
            arguments: anything that pickles.
            reservation: where the ranks go.
            deadline_s: for the start, and for each call that names no other.
            environment: variables to set in the processes, besides the few that are passed on.
            ranks_together: so many in a row are a world of their own to `join_process_group`; None: all are one.

        Raises:
            RankError: a rank raised, died, did not start in time, or is not where it should be.
        """
        self._name = getattr(make, "__name__", repr(make))
        self._deadline_s = deadline_s
        self._reservation = reservation
        self._together = ranks_together or reservation.world_size
        self._failure: RankError | HeadLostError | None = None
        self._session: RaySession = reservation.session
        self._dispatches = Dispatches()
        self._places: list[Where | None] = [None] * reservation.world_size
        self._actors: list[Any] = []
        self._ended = False
        ends = time.monotonic() + deadline_s
        try:
            self._create({**self._session.environment, **(environment or {})})
            self._place(self._ask("where", dict.fromkeys(range(self.world_size), ()), deadline_s))
            self._start(make, tuple(arguments), max(1.0, ends - time.monotonic()))
        except BaseException:
            self.shutdown()
            raise

    @property
    def world_size(self) -> int:
        return self._reservation.world_size

    @property
    def dispatches(self) -> Dispatches:
        return self._dispatches

    @property
    def ended(self) -> bool:
        """As `WorkerGroup.ended`."""
        return self._ended

    @property
    def hosts(self) -> list[str]:
        """As `WorkerGroup.hosts`."""
        return [place.host for place in self.places]

    @property
    def addresses(self) -> list[str]:
        """As `WorkerGroup.addresses`."""
        return [place.address for place in self.places]

    @property
    def places(self) -> list[Where]:
        """Where each rank runs."""
        return [place for place in self._places if place is not None]

    def call_all(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        """As `WorkerGroup.call_all`; the arguments are put into the object store once."""
        return self._begin_all(method, arguments, deadline_s, thread=None)()

    def call_each(
        self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None
    ) -> list[Any]:
        """As `WorkerGroup.call_each`."""
        return self._begin(method, arguments, deadline_s, thread=None)()

    def begin_all(self, method: str, *arguments: object, deadline_s: float | None = None, beside: bool = False) -> Call:
        """As `WorkerGroup.begin_all`."""
        return Call(self, self._begin_all(method, arguments, deadline_s, thread=_BESIDE if beside else None))

    def begin_each(self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None) -> Call:
        """As `WorkerGroup.begin_each`."""
        return Call(self, self._begin(method, arguments, deadline_s, thread=None))

    def call_one(self, rank: int, method: str, *arguments: object, deadline_s: float | None = None) -> Any:
        """As `WorkerGroup.call_one`."""
        self._check_alive(method)
        limit = deadline_s or self._deadline_s
        with self._dispatches.count(method) as dispatch:
            reference = self._actors[rank].call.remote(method, arguments, limit + GRACE_SECONDS)
            (answer,) = self._collect(method, {reference: rank}, limit).values()
            dispatch.rank_seconds = [answer.seconds]
        return answer.value

    def call_beside(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        """As `WorkerGroup.call_beside`."""
        import ray

        self._check_alive(method)
        limit, shared = deadline_s or self._deadline_s, ray.put(arguments)
        pending = {
            actor.call.options(concurrency_group=_BESIDE).remote(method, shared): rank
            for rank, actor in enumerate(self._actors)
        }
        answers: dict[int, Any] = {}
        ends = time.monotonic() + limit
        while pending:
            ready = self._ready(method, pending, ends)
            rank = pending.pop(ready[0]) if ready else -1
            answer = self._read(ready[0], rank) if ready else None
            if not isinstance(answer, Answer):
                failures = {} if answer is None else {rank: answer}
                places = dict(enumerate(self._places))
                unanswered = tuple(sorted(pending.values()))
                raise Situation(self._name, method, places, failures, unanswered, {}, limit).error()
            answers[rank] = answer.value
        return [answers[rank] for rank in range(self.world_size)]

    def shutdown(self) -> None:
        """End all ranks, with what they have started; more than once does no harm."""
        import ray

        if self._ended:
            return
        self._ended = True
        processes = [process for place in self.places for process in _local_processes(place)]
        reachable = ray.is_initialized() and self._session.lost is None
        if reachable:
            for actor in self._actors:
                ray.kill(actor, no_restart=True)
        _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS if reachable else 0)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=STOP_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _create(self, environment: Mapping[str, str]) -> None:
        import ray

        remote: Any = ray.remote
        host = remote(concurrency_groups={"diagnosis": 1, _BESIDE: 1})(RankHost)
        for rank in range(self.world_size):
            options = {"max_restarts": 0, "max_task_retries": 0, **self._reservation.options(rank)}
            if environment:
                options["runtime_env"] = {"env_vars": dict(environment)}
            self._actors.append(host.options(**options).remote())

    def _place(self, places: Sequence[Where]) -> None:
        self._places = list(places)
        for slot, place in zip(self._reservation.slots, places, strict=True):
            if place.node_id != slot.node_id:
                raise WorkerError(
                    f"{self._name} rank {slot.rank} was reserved on node {slot.address} ({slot.node_id}) and started "
                    f"on {place.address} ({place.node_id})"
                )

    def _start(self, make: Callable[..., object], arguments: tuple[object, ...], deadline_s: float) -> None:
        import ray

        slots, size = self._reservation.slots, self._together
        firsts = range(0, self.world_size, size)
        ports = self._ask("reserve_port", {first: (slots[first].address,) for first in firsts}, deadline_s)
        shared, limit = ray.put(arguments), deadline_s + GRACE_SECONDS
        references = {}
        for actor, slot in zip(self._actors, slots, strict=True):
            world = slot.rank // size
            membership = _membership(slot, slots[world * size], size, ports[world])
            references[actor.start.remote(membership, make, shared, limit)] = slot.rank
        self._collect("start", references, deadline_s)

    def _ask(self, method: str, arguments: Mapping[int, tuple[object, ...]], deadline_s: float) -> list[Any]:
        """Of the host rather than of the worker; of the ranks that there are arguments for, in rank order."""
        references = {getattr(self._actors[rank], method).remote(*own): rank for rank, own in arguments.items()}
        answers = self._collect(method, references, deadline_s)
        return [answers[rank] for rank in sorted(answers)]

    def _begin_all(
        self, method: str, arguments: tuple[object, ...], deadline_s: float | None, *, thread: str | None
    ) -> Callable[[], list[Any]]:
        import ray

        self._check_alive(method)
        shared = ray.put(arguments) if arguments else ()
        return self._begin(method, [shared] * self.world_size, deadline_s, thread=thread)

    def _begin(
        self, method: str, arguments: Sequence[Any], deadline_s: float | None, *, thread: str | None
    ) -> Callable[[], list[Any]]:
        """Ask all ranks; what is returned waits for their answers, until the deadline that begins now."""
        self._check_alive(method)
        assert len(arguments) == self.world_size, (len(arguments), self.world_size)
        limit = deadline_s or self._deadline_s
        ends = time.monotonic() + limit
        references = {
            actor.call.options(concurrency_group=thread).remote(method, own, limit + GRACE_SECONDS): rank
            for rank, (actor, own) in enumerate(zip(self._actors, arguments, strict=True))
        }

        def collect() -> list[Any]:
            with self._dispatches.count(method) as dispatch:
                answers = self._collect(method, references, limit, ends=ends)
                dispatch.rank_seconds = [answers[rank].seconds for rank in range(self.world_size)]
            return [answers[rank].value for rank in range(self.world_size)]

        return collect

    def _ready(self, method: str, pending: Mapping[Any, int], ends: float) -> list[Any]:
        """An answer that is there; none at `ends`."""
        import ray

        while True:
            left = ends - time.monotonic()
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=max(0.0, min(left, _LOOK_SECONDS)))
            if ready or left <= _LOOK_SECONDS:
                return list(ready)
            self._check_head(method, sorted(pending.values()))

    def _check_head(self, method: str, unanswered: Sequence[int]) -> None:
        if self._session.lost is None or self._ended:
            return
        what = f" had no answer from {ranks_named(unanswered)} of {self.world_size}" if unanswered else " was not begun"
        self._failure = HeadLostError(f"{self._session.lost}. {self._name}: {method}{what}; all ranks were ended")
        self.shutdown()
        raise self._failure

    def _check_alive(self, method: str) -> None:
        self._check_head(method, [])
        if self._ended:
            why = "" if self._failure is None else f": {self._failure}"
            raise WorkerError(f"{self._name}: {method} was called after the group had ended{why}") from self._failure

    def _collect(
        self, method: str, references: Mapping[Any, int], deadline_s: float, *, ends: float | None = None
    ) -> dict[int, Any]:
        """What each rank returns; raises as soon as the cause of a failure is known."""
        import ray

        pending = dict(references)
        answers: dict[int, Any] = {}
        failures: dict[int, Failure | Death] = {}
        ends = time.monotonic() + deadline_s if ends is None else ends
        while pending and not any(map(is_own, failures.values())):
            ready = self._ready(method, pending, ends)
            if not ready:
                break
            if len(pending) > 1:  # whatever is there by now: in one go, and no cause is missed for a lower rank's error
                ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
            for reference in ready:
                rank = pending.pop(reference)
                answer = self._read(reference, rank)
                found: dict[int, Any] = failures if isinstance(answer, Death | Failure) else answers
                found[rank] = answer
            if failures:
                ends = min(ends, time.monotonic() + _GRACE_SECONDS)
        if failures or pending:
            self._fail(method, failures, tuple(pending.values()), deadline_s)
        return answers

    def _read(self, reference: Any, rank: int) -> Any:
        import ray

        try:
            answer = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # of the host itself
            return Failure(str(error.cause), str(error), in_collective=False, error=None)
        except ray.exceptions.RayError as error:
            place = self._places[rank]
            return Death(death_reason(str(error)), "" if place is None else self._session.last_words(place.pid))
        return answer.failure if isinstance(answer, Answer) and answer.failure is not None else answer

    def _fail(
        self, method: str, failures: Mapping[int, Failure | Death], unanswered: tuple[int, ...], deadline_s: float
    ) -> None:
        asked = not failures or any(isinstance(each, Failure) and each.in_collective for each in failures.values())
        diagnoses = self._diagnose([rank for rank in range(self.world_size) if asked and not _dead(failures, rank)])
        places = dict(enumerate(self._places))
        situation = Situation(self._name, method, places, failures, tuple(sorted(unanswered)), diagnoses, deadline_s)
        if self._failure is None:  # else this is another thread's call, which the end of the group has ended too
            self._failure = situation.error()
        self.shutdown()
        raise self._failure

    def _diagnose(self, ranks: Sequence[int]) -> dict[int, Diagnosis]:
        import ray

        references = {
            self._actors[rank].diagnose.options(concurrency_group="diagnosis").remote(): rank for rank in ranks
        }
        found: dict[int, Diagnosis] = {}
        if references:
            ready, _ = ray.wait(list(references), num_returns=len(references), timeout=_DIAGNOSIS_SECONDS)
            for reference in ready:
                answer = self._read(reference, references[reference])
                if isinstance(answer, Diagnosis):
                    found[references[reference]] = answer
        for rank in set(ranks) - set(found):
            stacks = _stacks_by_signal(self._places[rank])
            if stacks:
                found[rank] = Diagnosis(stacks, {})
        return found


def _dead(failures: Mapping[int, Failure | Death], rank: int) -> bool:
    return isinstance(failures.get(rank), Death)


def _membership(slot: Slot, first: Slot, world_size: int, port: int) -> Membership:
    return Membership(
        slot.rank - first.rank, world_size, slot.node_rank - first.node_rank, slot.local_rank, slot.local_world_size,
        first.address, port, first.rank,
    )  # fmt: skip


def _is_here(place: Where) -> bool:
    return place.host == socket.gethostname() and psutil.pid_exists(place.pid)


def _local_processes(place: Where) -> list[psutil.Process]:
    """The rank's process and all that it has started, if it is on this machine."""
    if not _is_here(place):
        return []
    try:
        process = psutil.Process(place.pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _stacks_by_signal(place: Where | None) -> str:
    """The stacks of a rank on this machine that holds the interpreter; empty if there are none to be had."""
    if place is None or not _is_here(place):
        return ""
    file = Path(f"/proc/{place.pid}/fd/{place.stacks_fd}")
    if not file.exists():
        return ""
    os.kill(place.pid, signal.SIGUSR2)
    ends = time.monotonic() + _DIAGNOSIS_SECONDS
    text = ""
    while not text.endswith("\n") and time.monotonic() < ends:
        time.sleep(0.05)
        text = file.read_text(errors="replace")
    return worker_stacks(text)
