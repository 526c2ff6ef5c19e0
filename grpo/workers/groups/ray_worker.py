"""One object in a Ray actor on this machine: every call has a deadline, every error reaches the caller."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grpo.errors import GrpoError, WorkerError

STOP_SECONDS = 20.0
# What a worker process sees of the environment: names and beginnings of names. Everything else may hold secrets.
_PASSED_ON = (
    "CUDA_", "GRPO_", "HF_HOME", "HF_HUB_OFFLINE", "HOME", "LANG", "LC_", "LD_", "LOGNAME", "NCCL_", "NVIDIA_", "OMP_",
    "PATH", "PYTHON", "RAY_", "SSL_CERT_", "TMPDIR", "TORCH", "TZ", "USER", "VIRTUAL_ENV", "VLLM_", "XDG_CACHE_HOME",
)  # fmt: skip


class RayWorker:
    """An object that lives in a Ray actor.

    A call that misses its deadline kills the actor: what it was doing is unknown, so nothing more may be asked of it.
    """

    def __init__(
        self,
        make: Callable[..., object],
        *arguments: object,
        timeout_s: float,
        num_gpus: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start an actor and, in it, make the object.

        Args:
            make: class or function that can be imported; called in the actor with `arguments`.
            arguments: anything that pickles.
            timeout_s: seconds for the start, and for every call that names no other.
            num_gpus: GPUs that the actor sees.
            environment: variables to set in the actor, besides the few that are passed on.

        Raises:
            WorkerError: Ray is not installed, or the actor does not start in time.
            GrpoError: as raised by `make` in the actor.
        """
        if importlib.util.find_spec("ray") is None:
            raise WorkerError(
                "cluster.launcher=ray, but Ray is not installed: pip install 'grpo-matrix[vllm]' (GPU) or "
                "'grpo-matrix[cpu]', or set cluster.launcher=in_process"
            )
        import ray

        self._timeout_s = timeout_s
        self._name = getattr(make, "__name__", repr(make))
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start_ray(num_gpus)
        host: Any = ray.remote(_Host)
        actor = host.options(
            num_cpus=1, num_gpus=num_gpus, max_restarts=0, runtime_env={"env_vars": dict(environment or {})}
        )
        self._actor: Any = actor.remote()
        try:
            self._get("start", self._actor.start.remote(make, arguments), timeout_s)
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
        return self._get(method, self._actor.call.remote(method, *arguments), timeout_s or self._timeout_s)

    def kill(self) -> None:
        """End the actor and what was started for it; more than once does no harm."""
        import ray

        if self._actor is None:
            return
        ray.kill(self._actor, no_restart=True)
        self._actor = None
        if self._owns_ray:
            ray.shutdown()

    def _get(self, method: str, reference: Any, timeout_s: float) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            self.kill()
            raise WorkerError(
                f"worker {self._name}: {method} did not return within {timeout_s:g} s and was killed; raise "
                "cluster.worker_timeout_s if it was only slow"
            ) from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GrpoError):
                raise error.cause from error
            raise
        except ray.exceptions.RayActorError as error:
            self.kill()
            raise WorkerError(f"worker {self._name} died during {method}: {error}") from error


class _Host:
    """The actor: holds the object and passes calls on."""

    def start(self, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._object = make(*arguments)

    def call(self, method: str, *arguments: object) -> object:
        return getattr(self._object, method)(*arguments)


def _start_ray(num_gpus: int) -> None:
    """A Ray of this process alone: on loopback, without dashboard, with little of the environment."""
    import ray

    with _reduced_environment(), _loopback():
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            address="local", num_cpus=1, num_gpus=num_gpus, include_dashboard=False, log_to_driver=False,
            configure_logging=False, _node_ip_address="127.0.0.1",
        )  # fmt: skip


@contextmanager
def _loopback() -> Iterator[None]:
    """On Linux Ray replaces the loopback address by one that others can reach, and then listens on all interfaces.

    It does so unless clusters are switched off, as they are on other systems; there is no option for it.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _reduced_environment() -> Iterator[None]:
    """Only what is in `_PASSED_ON`: processes that start meanwhile inherit no more."""
    before = dict(os.environ)
    for name in before:
        if not name.startswith(_PASSED_ON):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
