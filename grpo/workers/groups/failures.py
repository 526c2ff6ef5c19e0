"""The error of a group: which rank failed, where, why, and which rank stayed away from a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo.errors import GrpoError, WorkerError
from grpo.workers.groups.rank_host import Diagnosis, Failure, Where

_MOST_TOLD = 3  # other failures in a message
# Where a rank waits for one of another group, as its stack has it.
_WAITS_FOR_A_PEER = ("grpo/refit/channel.py", "grpo/refit/broadcast.py")


class RankError(WorkerError):
    """A rank raised, died or did not answer. The group has ended."""

    exit_code = 1

    def __init__(self, message: str, *, rank: int, node: str, follows: bool = False) -> None:
        """`follows`: the cause may be a rank of another group, with which this one exchanges tensors."""
        super().__init__(message)
        self.rank = rank
        self.node = node
        self.follows = follows


@dataclass(frozen=True)
class Death:
    """A rank's process is gone."""

    reason: str  # as Ray gives it
    last_words: str  # the end of what it printed, where that can be read


def is_own(failure: Failure | Death) -> bool:
    """Whether the rank failed by itself rather than because another did."""
    return isinstance(failure, Death) or not failure.in_collective


@dataclass(frozen=True)
class Absence:
    """Ranks that have not issued a collective that others have."""

    group: str
    ranks: tuple[int, ...]
    issued: int
    waiting: tuple[int, ...]
    expected: int

    def __str__(self) -> str:
        return (
            f"{ranks_named(self.ranks)} did not take part in collective {self.expected} of process group {self.group} "
            f"(issued {self.issued}), for which {ranks_named(self.waiting)} waited"
        )


def absences(diagnoses: Mapping[int, Diagnosis]) -> list[Absence]:
    """For each process group whose ranks disagree on how many collectives there were: who is behind."""
    found = []
    for key in dict.fromkeys(key for each in diagnoses.values() for key in each.collectives):
        counts = {rank: each.collectives[key] for rank, each in diagnoses.items() if key in each.collectives}
        most, least = max(counts.values()), min(counts.values())
        if most > least:
            behind = tuple(rank for rank, count in counts.items() if count < most)
            waiting = tuple(rank for rank, count in counts.items() if count == most)
            found.append(Absence(key[0], behind, least, waiting, most))
    return found


@dataclass(frozen=True)
class Situation:
    """What is known when a call has failed."""

    worker: str
    method: str
    places: Mapping[int, Where | None]
    failures: Mapping[int, Failure | Death]  # in the order in which they came
    unanswered: tuple[int, ...]
    diagnoses: Mapping[int, Diagnosis]
    deadline_s: float

    def error(self) -> RankError:
        """The error to raise: of the rank that is the cause, as far as can be told."""
        cause = self._cause()
        if cause is None:
            return self._hang()
        failure = self.failures[cause]
        if isinstance(failure, Death):
            text = f"{self._name(cause)} died during {self.method}: {failure.reason}{_block(failure.last_words)}"
            return self._error(text + self._others(cause), cause)
        away = absences(self.diagnoses) if failure.in_collective else []
        if away:
            missing = away[0].ranks[0]
            text = f"{self._name(missing)}: {'; '.join(map(str, away))}: {self._at(missing)}"
            text += f"\n{self._name(cause)} then raised {failure.summary}{self._stacks(away[0].ranks)}"
            return self._error(text, missing, failure.error)
        users = isinstance(failure.error, GrpoError)
        text = f"{self._name(cause)}: {self.method} raised {failure.summary}"
        text = text if users else text + _block(failure.traceback)
        error = self._error(text + self._others(cause), cause, failure.error)
        error.follows = failure.in_collective
        return error

    def _cause(self) -> int | None:
        """A rank that failed by itself; of those known at a time one that died, which no error of another explains."""
        own = [rank for rank, each in self.failures.items() if is_own(each)]
        dead = [rank for rank in own if isinstance(self.failures[rank], Death)]
        return next(iter([*dead, *own, *self.failures]), None)

    def _others(self, cause: int) -> str:
        """Who else had failed by itself by then, in a line; ranks that do the same fail alike."""
        others = {rank: each for rank, each in self.failures.items() if rank != cause and is_own(each)}
        told = [
            f"rank {rank} {'died' if isinstance(each, Death) else f'raised {each.summary}'}"
            for rank, each in sorted(others.items())
        ]
        return f"\nand {'; '.join(told[:_MOST_TOLD])}{' ...' * (len(told) > _MOST_TOLD)}" if told else ""

    def _hang(self) -> RankError:
        away = absences(self.diagnoses)
        named = away[0].ranks if away else self.unanswered
        text = f"{self._name(named[0])}: {self.method} did not return within {self.deadline_s:g} s"
        text += f"; no answer from {ranks_named(self.unanswered)} of {len(self.places)}"
        for each in away:
            text += f"; {each}"
        if away:
            text += f": {self._at(named[0])}"
        text += "; all ranks were ended. Raise cluster.worker_timeout_s if it was only slow"
        error = self._error(text + self._stacks(self.unanswered), named[0])
        known = self.diagnoses.get(named[0])
        error.follows = known is not None and any(each in known.stacks for each in _WAITS_FOR_A_PEER)
        return error

    def _at(self, rank: int) -> str:
        if rank in self.unanswered:
            return "it is elsewhere"
        return f"it has left {self.method}" if rank not in self.failures else f"it has failed in {self.method}"

    def _stacks(self, ranks: tuple[int, ...]) -> str:
        text = ""
        for rank in ranks:
            known = self.diagnoses.get(rank)
            text += f"\nstacks of {self._name(rank)}:"
            text += (_block(known.stacks) or " idle") if known is not None else " it does not answer that either"
        return text

    def _error(self, text: str, rank: int, cause: Exception | None = None) -> RankError:
        place = self.places[rank]
        error = RankError(text, rank=rank, node="unknown" if place is None else place.address)
        error.__cause__ = cause
        return error

    def _name(self, rank: int) -> str:
        place = self.places[rank]
        where = "" if place is None else f" on node {place.address} ({place.host}, process {place.pid})"
        return f"{self.worker} rank {rank}{where}"


def ranks_named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _block(text: str) -> str:
    return f"\n{text.rstrip()}" if text.strip() else ""


def death_reason(error: str) -> str:
    """The part of Ray's message about a dead actor that says how it ended."""
    _, found, detail = error.partition("Worker exit detail: ")
    return (detail if found else error).partition(" If the process was killed by")[0].strip()
