"""What vLLM's builds and releases differ in, and what it does to the process that starts it."""

from __future__ import annotations

import importlib.util
import logging
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
import torch
from packaging.version import Version

from grpo.errors import GenerationError
from grpo.workers.generation import vllm_parallel
from grpo.workers.generation.weight_routes import UnknownRoutesError, WeightRoutes

_log = logging.getLogger(__name__)
OLDEST = Version("0.25")
INSTALL = "pip install 'grpo-matrix[vllm]' (GPU) or 'grpo-matrix[cpu]'"

# In effect while an engine starts, and only then.
_START_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process
    "VLLM_NO_USAGE_STATS": "1",  # reports nothing to anyone
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # pins no cores: trainer and engine take turns on them
    **vllm_parallel.START_ENVIRONMENT,
}


def installed_builds() -> dict[str, str]:
    """Version by distribution name of the two packages that both provide the module `vllm`."""
    builds = {}
    for name in ("vllm", "vllm-cpu"):
        try:
            builds[name] = version(name)
        except PackageNotFoundError:
            continue
    return builds


def check_installed() -> None:
    """Refuse to start without exactly one usable vLLM.

    Raises:
        GenerationError: no vLLM, both builds at once, or one that is too old.
    """
    builds = installed_builds()
    if not builds or importlib.util.find_spec("vllm") is None:
        raise GenerationError(
            f"policy.generation.backend=vllm, but vLLM is not installed: {INSTALL}, or set policy.generation.backend=hf"
        )
    if len(builds) > 1:
        raise GenerationError(
            f"both vllm {builds['vllm']} and vllm-cpu {builds['vllm-cpu']} are installed and overwrite each other's "
            "files: make a fresh environment with one of the extras `vllm` and `cpu`"
        )
    ((name, found),) = builds.items()
    if Version(found) < OLDEST:
        raise GenerationError(f"{name} {found} is installed, grpo needs {OLDEST} or newer: {INSTALL}")


def start_engine(arguments: dict[str, Any]) -> Any:
    """A `vllm.LLM` in this process, which is left as it was: environment, random generators, torch's thread setting.

    Raises:
        GenerationError: the engine does not start.
    """
    owns_process_group = not torch.distributed.is_initialized()
    with _environment(_START_ENVIRONMENT), _random_state(), _thread_setting():
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM

        try:
            return LLM(**arguments)
        except Exception as error:
            if owns_process_group and torch.distributed.is_initialized():
                _leave_process_group()
            raise GenerationError(f"vLLM {version_string()} does not start: {error}") from error


def version_string() -> str:
    """Version of the installed build."""
    return ", ".join(f"{found} ({name})" for name, found in installed_builds().items())


# What happens to the cache of requests that run during an update: there are none; it stays; it is computed again.
CacheOfRunning = Literal["none", "keep", "recompute"]


def weight_routes(
    engine: Any, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: str
) -> WeightRoutes | None:
    """Ways into the live parameters of an in-process engine; None on CPUs, where weights are packed.

    A model whose weights are not plain copies of the sent ones is None too, and a line says so.
    """
    if device == "cpu":
        return None
    try:
        (routes,) = engine.apply_model(lambda model: WeightRoutes.traced(model, shapes, dtype))
    except UnknownRoutesError as reason:
        _log.warning("weights are loaded into vLLM layer by layer, from a copy, which is slow: %s", reason)
        return None
    found: WeightRoutes = routes
    return found


def reload_weights(engine: Any, weights: list[tuple[str, torch.Tensor]], tied: Iterable[str]) -> None:
    """Replace the weights of an in-process engine by way of its own loader.

    On CPUs weights are packed at loading, so `model.load_weights` alone would break them; `reload_weights` unpacks them
    layer by layer. A tied output layer has packed weights of its own, which nothing else renews.

    Args:
        engine: a `vllm.LLM`.
        weights: all of them, tied ones once.
        tied: second names of tied weights.
    """

    def pack_tied(model: Any) -> None:
        for name in tied:
            layer = model.get_submodule(name.rpartition(".")[0])
            layer.quant_method.process_weights_after_loading(layer)

    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    engine.apply_model(pack_tied)


def check_only_parameters(engine: Any) -> None:
    """Refuse a model whose files hold more than parameters: an engine that starts without has no values for the rest.

    Scales of attention are there, too, and are 1 unless a cache of fewer bits asks for others.

    Raises:
        GenerationError: naming what.
    """

    def others(model: Any) -> list[str]:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        rest = {name: each for name, each in model.state_dict().items() if name not in parameters}
        return sorted(name for name, each in rest.items() if each.is_floating_point() and not bool((each == 1).all()))

    (found,) = engine.apply_model(others)
    if found:
        raise GenerationError(f"vLLM keeps {found[0]} with the weights, which no weight update brings")


def forget_prefixes(engine: Any, running: CacheOfRunning) -> None:
    """Drop what was computed with the old weights.

    Args:
        engine: a `vllm.LLM`.
        running: with "keep" cached prefixes stay too: requests must have a cache salt by version then.

    Raises:
        GenerationError: the prefix cache is in use.
    """
    if running == "keep":
        return
    if not engine.llm_engine.reset_prefix_cache(running == "recompute"):
        raise GenerationError("vLLM did not drop its prefix cache after a weight update: a request is still running")


def sleep(engine: Any, level: int) -> None:
    """Have an idle in-process engine give its memory back, and forget the prefixes that were in it.

    Raises:
        GenerationError: a request is still running.
    """
    if not engine.reset_prefix_cache():
        raise GenerationError("vLLM cannot sleep: a request is still running")
    engine.sleep(level=level)


@contextmanager
def sampling_context(device: str) -> Iterator[None]:
    """Around `generate`: the global generator stays as it is; on a CPU nothing is compiled for a few samples."""
    with torch.random.fork_rng(devices=[]):
        if device == "cpu":
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield


def stop_engine(engine: Any, *, owns_process_group: bool) -> None:
    """End the engine and, where vLLM made it, the process group of one."""
    engine.llm_engine.engine_core.shutdown()
    if owns_process_group:
        _leave_process_group()


def _leave_process_group() -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _random_state() -> Iterator[None]:
    # In one process vLLM seeds the global generators with the engine's seed.
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _thread_setting() -> Iterator[None]:
    # vLLM's CPU worker replaces `torch.set_num_threads` by a function that does nothing.
    function, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = function
        torch.set_num_threads(threads)
