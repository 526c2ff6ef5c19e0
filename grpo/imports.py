"""The user's own code, named in a recipe as `module:function`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError


def import_function(name: str, *, key: str, error: type[GrpoError]) -> Callable[..., Any]:
    """The callable that `module:function` names; modules of the current directory can be imported.

    Raises `error`, naming the configuration `key`, when the name is malformed, the module is not found or fails while
    it is imported, or has no such callable.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator or not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise error(f"{key}: {name!r} is not of the form 'module:function'")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as failure:
        if failure.name is not None and (module_name + ".").startswith(failure.name + "."):
            raise error(
                f"{key}: no module {failure.name!r} for {name!r}; it is looked for in {folder} and among the "
                "installed packages"
            ) from failure
        raise error(f"{key}: importing {module_name!r} failed: {failure}") from failure
    except Exception as failure:
        raise error(f"{key}: importing {module_name!r} failed: {type(failure).__name__}: {failure}") from failure
    function = vars(module).get(attribute)
    if not callable(function):
        callables = sorted(k for k, v in vars(module).items() if callable(v) and not k.startswith("_"))
        raise error(
            f"{key}: module {module_name!r} has no function {attribute!r}; it has {', '.join(callables) or 'none'}"
        )
    result: Callable[..., Any] = function
    return result
