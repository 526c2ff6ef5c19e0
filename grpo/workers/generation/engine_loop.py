"""An engine that samples in a thread of its own, so that requests and new weights may come while it works."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from grpo.errors import GenerationError
from grpo.workers.generation.lockstep import HEARTBEAT_SECONDS, Alone, Seen, Together
from grpo.workers.protocol import Completion, Finished, GroupRequest, LocalGenerator, SamplingParams

_JOIN_SECONDS = 15.0  # less than a call to end a worker may take
_DEADLINE_SECONDS = 1800.0
_ARRIVAL_SECONDS = 60.0  # from the first rank's hearing of something to the others'


class SteppedEngine(Protocol):
    """An engine that works when it is told to. All is called from one thread, which also makes it."""

    @property
    def weight_version(self) -> int:
        """Of the weights that the next token is sampled with."""
        ...

    @property
    def pending(self) -> int:
        """Requests that were added and have not been returned."""
        ...

    def add(self, request: GroupRequest, num_completions: int, sampling: SamplingParams) -> None:
        """Take a request."""
        ...

    def step(self) -> list[tuple[int, list[Completion]]]:
        """Do the smallest piece of work that can be done; the groups that are complete with it, by their keys."""
        ...

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights; what runs goes on with the new ones. Raises like `Generator.update_weights`."""
        ...

    def shutdown(self) -> None:
        """Free everything."""
        ...


@dataclass
class _Update:
    weights: Iterable[tuple[str, Tensor]]
    version: int
    done: bool = False
    failure: Exception | None = None


class EngineLoop:
    """Owns the engine and its thread. Whoever waits here also hears what ended the thread, with its traceback."""

    def __init__(
        self,
        make: Callable[[], SteppedEngine],
        *,
        in_flight: bool,
        together: Together | None = None,
        deadline_s: float = _DEADLINE_SECONDS,
    ) -> None:
        """`make` is called in the thread.

        Args:
            make: the engine.
            in_flight: weights do not wait for what is being sampled.
            together: how the ranks of an engine agree; None: it has one.
            deadline_s: of the start and of an update, which may have to wait for all that is being sampled.

        Raises:
            GenerationError: the engine did not start in time.
            Exception: whatever `make` raised.
        """
        self._in_flight = in_flight
        self._deadline_s = deadline_s
        self._together: Together = together or Alone()
        self._requests = self._updates = 0  # that have come
        self._taken = self._updated = 0  # that were acted upon
        self._changed = threading.Condition()
        self._waiting: deque[tuple[GroupRequest, int, SamplingParams]] = deque()
        self._owner: dict[int, str] = {}
        self._finished: dict[str, list[tuple[int, list[Completion]]]] = {}
        self._busy_s: dict[str, float] = {}  # in which an owner had requests, since it asked
        self._update: _Update | None = None
        self._failure: BaseException | None = None
        self._ready = self._closing = False
        self._thread = threading.Thread(target=self._run, args=(make,), name="engine-loop", daemon=True)
        self._thread.start()
        with self._changed:
            started = self._changed.wait_for(lambda: self._ready or self._failure, deadline_s)
            self._raise_failure()
        if not started:
            raise GenerationError(f"the engine did not start within {deadline_s:g} s")

    def submit(
        self, owner: str, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams
    ) -> None:
        """Take requests; their keys are not in use. `owner` names who will ask for them."""
        with self._changed:
            self._raise_failure()
            for request in requests:
                assert request.key not in self._owner, request.key
                self._owner[request.key] = owner
                self._waiting.append((request, num_completions, sampling))
                self._requests += 1
            self._changed.notify_all()

    def finished(self, owner: str, wait_s: float) -> Finished:
        """What has finished of an owner's, waiting up to `wait_s` for the first.

        With the seconds since it asked last in which the engine worked while it had requests, whoever else had some.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._finished.get(owner) or self._failure, wait_s)
            self._raise_failure()
            return Finished(self._finished.pop(owner, []), self._busy_s.pop(owner, 0.0))

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights and return when it is done; a refused update leaves the engine going with the old ones.

        Raises:
            GenerationError: as the engine raises it, or it did not take them in time.
        """
        update = _Update(weights, version)
        with self._changed:
            self._raise_failure()
            assert self._update is None, "one update at a time"
            self._update = update
            self._updates += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: update.done or self._failure, self._deadline_s):
                raise GenerationError(f"the engine did not take weights {version} within {self._deadline_s:g} s")
            self._raise_failure()
        if update.failure is not None:
            raise update.failure

    def shutdown(self) -> None:
        """End thread and engine; what was being sampled is lost. More than once does no harm."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            raise GenerationError(f"the engine did not end within {_JOIN_SECONDS:g} s")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise GenerationError("the engine has ended")

    def _run(self, make: Callable[[], SteppedEngine]) -> None:
        try:
            engine = make()
            try:
                with self._changed:
                    self._ready = True
                    self._changed.notify_all()
                while self._next(engine):
                    self._step(engine)
            finally:
                engine.shutdown()
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the engine
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _next(self, engine: SteppedEngine) -> bool:
        """Wait until there is something to sample, doing updates meanwhile; False at the end."""
        while True:
            agreed = self._agreed(engine)
            if agreed.closing:
                return False
            with self._changed:
                update = self._update if agreed.updates > self._updated else None
                hold = update is not None and not self._in_flight
                new = 0 if hold else agreed.requests - self._taken
                taken = [self._waiting.popleft() for _ in range(new)]
                self._taken += new
            if update is not None and (self._in_flight or not engine.pending):
                self._do(update, engine)
            for request, num_completions, sampling in taken:
                engine.add(request, num_completions, sampling)
            if engine.pending:
                return True

    def _agreed(self, engine: SteppedEngine) -> Seen:
        """What all ranks act on next, once it is here.

        Raises:
            GenerationError: the first rank has something that has not come here within a minute.
        """
        with self._changed:
            if self._together.leads:
                self._changed.wait_for(
                    lambda: self._closing or self._update or self._waiting or engine.pending, HEARTBEAT_SECONDS
                )
            seen = Seen(self._requests, self._updates, self._closing)
        agreed = self._together.agree(seen)
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._requests >= agreed.requests and self._updates >= agreed.updates, _ARRIVAL_SECONDS
            ):
                raise GenerationError(
                    f"the first rank of this engine has had {agreed.requests} requests and {agreed.updates} updates, "
                    f"this one {self._requests} and {self._updates} within {_ARRIVAL_SECONDS:g} s"
                )
        return agreed

    def _do(self, update: _Update, engine: SteppedEngine) -> None:
        try:
            engine.update_weights(update.weights, update.version)
        except GenerationError as error:
            update.failure = error
        with self._changed:
            update.done, self._update = True, None
            self._updated += 1
            self._changed.notify_all()

    def _step(self, engine: SteppedEngine) -> None:
        with self._changed:
            owners = set(self._owner.values())
        started = time.perf_counter()
        groups = engine.step()
        seconds = time.perf_counter() - started
        with self._changed:
            for owner in owners:
                self._busy_s[owner] = self._busy_s.get(owner, 0.0) + seconds
            for key, completions in groups:
                self._finished.setdefault(self._owner.pop(key), []).append((key, completions))
            if groups:
                self._changed.notify_all()


class BatchEngine:
    """A `SteppedEngine` over a `LocalGenerator` that samples whole batches: its step is all that waits."""

    def __init__(self, generator: LocalGenerator) -> None:
        self._generator = generator
        self._waiting: list[tuple[GroupRequest, int, SamplingParams]] = []

    @property
    def weight_version(self) -> int:
        return self._generator.weight_version

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def add(self, request: GroupRequest, num_completions: int, sampling: SamplingParams) -> None:
        self._waiting.append((request, num_completions, sampling))

    def step(self) -> list[tuple[int, list[Completion]]]:
        """Sample everything that is asked for in the way of the first that waits."""
        _, count, sampling = self._waiting[0]
        alike = [request for request, *way in self._waiting if way == [count, sampling]]
        self._waiting = [each for each in self._waiting if list(each[1:]) != [count, sampling]]
        completions = self._generator.generate(
            [request.prompt for request in alike], count, sampling, [request.seed for request in alike]
        )
        return [(request.key, group) for request, group in zip(alike, completions, strict=True)]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._generator.update_weights(iter(weights), version)

    def shutdown(self) -> None:
        self._generator.shutdown()
