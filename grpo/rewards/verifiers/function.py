"""The user's own `module:function`.

    def reward(prompt: str, completion: str, answer: str | None, record: dict) -> float

Called with these four keywords and those of `env.<name>.kwargs`; `**_` may take the ones that it does not need. It runs
in processes of its own, one sample at a time, with a small environment (no tokens or keys) and without standard input
and output; it may keep caches in its module. Processes and threads that it leaves behind are killed.
"""

import importlib
import inspect
import traceback
from collections.abc import Mapping
from functools import partial, reduce
from types import ModuleType
from typing import Any, cast

from grpo.errors import RewardError
from grpo.rewards.verifiers import Verifier

SIGNATURE = "def reward(prompt: str, completion: str, answer: str | None, record: dict) -> float"


def load_function(verifier: str, kwargs: Mapping[str, Any]) -> Verifier:
    """Import `module:function` and check that it can be called. Raises RewardError."""
    module_name, _, function_name = verifier.partition(":")
    module = _import(verifier, module_name)
    try:
        function: Any = reduce(getattr, function_name.split("."), cast("Any", module))
    except AttributeError as error:
        names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise RewardError(
            f"verifier {verifier!r}: {module.__file__ or module_name} has no function {function_name!r}; "
            f"its functions: {', '.join(names) or 'none'}"
        ) from error
    _check(verifier, function, kwargs)
    return partial(function, **kwargs)


def _import(verifier: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A missing import inside the user's module is another fault than a missing module.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise RewardError(
                f"verifier {verifier!r}: no module {name!r} in the current directory or the Python path"
            ) from error
        raise RewardError(f"verifier {verifier!r}: importing {name!r} failed: {error}") from error
    except MemoryError as error:
        raise RewardError(f"verifier {verifier!r}: importing {name!r} needs more than memory_limit_mb") from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise RewardError(
            f"verifier {verifier!r}: importing {name!r} raised {type(error).__name__}: {error} "
            f"({last.filename}:{last.lineno})"
        ) from error


def _check(verifier: str, function: Any, kwargs: Mapping[str, Any]) -> None:
    if not callable(function):
        raise RewardError(f"verifier {verifier!r}: is a {type(function).__name__}, not a function; wanted: {SIGNATURE}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise RewardError(f"verifier {verifier!r}: must be a plain function, not async and not a generator")
    try:
        inspect.signature(function).bind(prompt="", completion="", answer=None, record={}, **kwargs)
    except (TypeError, ValueError) as error:
        extra = f", with kwargs {dict(kwargs)!r}" if kwargs else ""
        raise RewardError(f"verifier {verifier!r}: wrong signature: {error}; wanted: {SIGNATURE}{extra}") from error
