"""The states of the process's random number generators as tensors and JSON values, exactly and without pickle."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo.errors import CheckpointError

PREFIX = "rng/"
_TORCH, _CUDA, _PYTHON, _NUMPY = "torch", "torch_cuda", "python", "numpy"


def seed_rng(seed: int) -> None:
    """Nothing of the trainer draws from the global generators, but what a user plugs in may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def capture_rng(prefix: str = PREFIX) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and values of torch (CPU, and the current CUDA device once CUDA is in use), `random` and numpy.

    The tensors' names begin with `prefix`.

    Raises CheckpointError if numpy's global generator was exchanged for one that is no Mersenne Twister.
    """
    version, words, gauss = random.getstate()
    numpy_state = _numpy_state()
    tensors = {
        _TORCH: torch.get_rng_state(),  # [5056] uint8
        _PYTHON: torch.tensor(words, dtype=torch.int64),  # [625]
        _NUMPY: torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),  # [624]
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        tensors[_CUDA] = torch.cuda.get_rng_state()
    values = {
        "python": {"version": version, "gauss_next": gauss},
        "numpy": {
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
    }
    return {prefix + name: each for name, each in tensors.items()}, values


def remember_rng() -> Callable[[], None]:
    """What puts the same generators back to where they are now. Nothing is converted: it takes some microseconds."""
    python, torch_cpu = random.getstate(), torch.get_rng_state()
    legacy = np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(torch_cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)

    return put_back


def restore_rng(tensors: Mapping[str, Any], values: Mapping[str, Any], prefix: str = PREFIX) -> list[str]:
    """Take back what `capture_rng` gave, from tensors or stored ones; others are ignored.

    Returns names that this machine cannot take: the CUDA generator where there is no CUDA. Raises CheckpointError
    naming a state that is missing or malformed.
    """
    names = (prefix + name for name in (_TORCH, _CUDA, _PYTHON, _NUMPY))
    given: dict[str, Tensor] = {name.removeprefix(prefix): tensors[name][...] for name in names if name in tensors}
    try:
        python, legacy = values["python"], values["numpy"]
        random.setstate((python["version"], tuple(given[_PYTHON].tolist()), python["gauss_next"]))
        key = given[_NUMPY].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, legacy["pos"], legacy["has_gauss"], legacy["gauss"]))  # noqa: NPY002
        torch.set_rng_state(given[_TORCH])
        if _CUDA in given and torch.cuda.is_available():
            torch.cuda.set_rng_state(given[_CUDA])
    except KeyError as error:
        raise CheckpointError(f"the checkpoint lacks the random state {prefix}{error.args[0]}") from error
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint holds a random state that does not fit this program: {error}") from error
    return [prefix + _CUDA] if _CUDA in given and not torch.cuda.is_available() else []


def _numpy_state() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002  # libraries still draw from the global generator
    assert isinstance(state, dict)
    if state["bit_generator"] != "MT19937":
        raise CheckpointError(
            f"numpy's global generator is {state['bit_generator']}; only MT19937, its default, can be saved"
        )
    return state
