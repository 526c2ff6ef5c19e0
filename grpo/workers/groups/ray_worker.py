"""One object in a Ray actor: every call has a deadline, every error reaches the caller."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

from grpo.errors import GrpoError, WorkerError
from grpo.workers.groups.failures import death_reason
from grpo.workers.groups.ray_session import STOP_SECONDS, RaySession
from grpo.workers.groups.reservation import Reservation
from grpo.workers.groups.watchdog import watched

_DUMP_SECONDS = 5.0  # that an actor has after its deadline to write its stacks and exit


class RayWorker:
    """An object that lives in a Ray actor.

    A call that misses its deadline ends the actor, whose stacks are in the error: nothing more may be asked of it.
    """

    def __init__(
        self,
        make: Callable[..., object],
        *arguments: object,
        timeout_s: float,
        num_gpus: int = 0,
        environment: Mapping[str, str] | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        """Start an actor and, in it, make the object.

        Args:
            make: class or function that can be imported; called in the actor with `arguments`.
            arguments: anything that pickles.
            timeout_s: seconds for the start, and for every call that names no other.
            num_gpus: GPUs that the actor sees, without a reservation.
            environment: variables to set in the actor, besides the few that are passed on.
            reservation: the actor runs where that has rank 0; None: in a Ray of its own on this machine.

        Raises:
            WorkerError: Ray is not installed, or the actor does not start in time.
            GrpoError: as raised by `make` in the actor.
        """
        self._session = RaySession(gpus=num_gpus) if reservation is None else reservation.session
        self._owns_session = reservation is None
        self._pid: int | None = None
        import ray

        self._timeout_s = timeout_s
        self._name = getattr(make, "__name__", repr(make))
        host: Any = ray.remote(_Host)
        options = {"num_cpus": 1, "num_gpus": num_gpus} if reservation is None else reservation.options(0)
        sent = {} if reservation is None else reservation.session.environment
        variables = {**sent, **(environment or {})}
        self._actor: Any = host.options(max_restarts=0, runtime_env={"env_vars": variables}, **options).remote()
        try:
            self._pid = self._get("start", self._actor.start.remote(timeout_s, make, arguments), timeout_s)
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        """Whether calls can be made."""
        return self._actor is not None

    def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> Any:
        """Call a method of the object and wait for what it returns.

        Args:
            method: its name.
            arguments: anything that pickles; object references of Ray arrive as what they stand for.
            timeout_s: seconds; None: the worker's own limit.

        Raises:
            WorkerError: the actor died or missed the deadline; it is gone then.
            GrpoError: as raised by the method.
            Exception: any other error of the method, with the actor's traceback in its text.
        """
        if self._actor is None:
            raise WorkerError(f"worker {self._name}: {method} was called after the worker had ended")
        limit = timeout_s or self._timeout_s
        return self._get(method, self._actor.call.remote(limit, method, *arguments), limit)

    def kill(self) -> None:
        """End the actor and what was started for it; more than once does no harm."""
        import ray

        if self._actor is None:
            return
        ray.kill(self._actor, no_restart=True)
        self._actor = None
        self._await_end()
        if self._owns_session:
            self._session.close()

    def _await_end(self) -> None:
        """Until its memory is free, if the process is one of this machine."""
        with suppress(psutil.Error):
            process = psutil.Process(self._pid)
            if self._pid is not None and "ray::" in "".join(process.cmdline()):
                process.wait(STOP_SECONDS)

    def _get(self, method: str, reference: Any, timeout_s: float) -> Any:
        import ray

        ends = time.monotonic() + timeout_s
        try:
            return ray.get(reference, timeout=timeout_s + _DUMP_SECONDS)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GrpoError):
                raise error.cause from error
            raise
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
            in_time = time.monotonic() < ends
            told = "" if self._pid is None else self._session.last_words(self._pid)
            self.kill()
            if in_time:
                text = f"worker {self._name} died during {method}: {death_reason(str(error))}"
            else:
                text = (
                    f"worker {self._name}: {method} did not return within {timeout_s:g} s and was killed; raise "
                    "cluster.worker_timeout_s if it was only slow"
                )
            raise WorkerError(f"{text}\n{told}" if told else text) from error


class _Host:
    """The actor: holds the object and passes calls on."""

    def start(self, limit_s: float, make: Callable[..., object], arguments: tuple[object, ...]) -> int:
        """Make the object; the process's number. See `watched` for what happens after `limit_s`."""
        with watched(limit_s):
            self._object = make(*arguments)
        return os.getpid()

    def call(self, limit_s: float, method: str, *arguments: object) -> object:
        with watched(limit_s):
            return getattr(self._object, method)(*arguments)
