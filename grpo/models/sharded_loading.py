"""Weights for models that no rank holds whole: the shape first, then each parameter's part by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo.errors import ModelError
from grpo.models.loading import check_weights_present, load_model_config

Part = tuple[slice, ...]
Reader = Callable[[Part], Tensor]  # a part of one parameter, on the CPU
_models: Any = AutoModelForCausalLM  # its own annotations are partial


def shape_of_model(folder: Path) -> PreTrainedModel:
    """The model of a folder in float32 and evaluation mode, its parameters and buffers on the meta device.

    Raises:
        ModelError: config.json is missing or cannot be used.
    """
    config = load_model_config(folder)
    with torch.device("meta"):
        model = _models.from_config(config, dtype=torch.float32)
    return model.eval()  # type: ignore[no-any-return]


def restore_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Work out the rotary frequencies, the only buffers of these models, which no file holds."""
    decoder = model.get_decoder()  # type: ignore[no-untyped-call]
    decoder.rotary_emb = type(decoder.rotary_emb)(config=model.config).to(device)


def stored_weights(folder: Path, shapes: dict[str, torch.Size]) -> Iterator[tuple[str, Reader]]:
    """Readers of the safetensors of a folder, of which only the bytes of a part are read.

    Args:
        folder: holds *.safetensors, with an index where they are several.
        shapes: of the parameters that are wanted, by name.

    Raises:
        ModelError: a weight is missing or of another shape, or a file cannot be read.
    """
    check_weights_present(folder)
    with ExitStack() as stack:
        try:
            files = {path: stack.enter_context(safe_open(path, framework="pt")) for path in _weight_files(folder)}
            place = {name: path for path, file in files.items() for name in file.keys()}  # noqa: SIM118
            missing = sorted(set(shapes) - set(place))
            if missing:
                raise ModelError(
                    f"{folder}: {len(missing)} weights are missing from the safetensors, the first is {missing[0]}"
                )
            for name, shape in shapes.items():
                view = files[place[name]].get_slice(name)
                if tuple(view.get_shape()) != tuple(shape):
                    raise ModelError(
                        f"{place[name]}: {name} has shape {view.get_shape()}, but config.json asks for {list(shape)}"
                    )
                yield name, view.__getitem__
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(f"{folder}: the weights cannot be read: {error}") from error


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def random_weights(folder: Path, seed: int) -> Iterator[tuple[str, Reader]]:
    """Readers of the numbers that `load_model` with `random_weights` gives, one parameter in memory at a time.

    The generator is driven through every draw of the model's construction, in order.
    """
    model, draws = _record(folder)
    names = {_storage(each): name for name, each in model.named_parameters()}
    following: dict[int, Draw | None] = {}
    successors = []
    for draw in reversed(draws):
        successors.append(following.get(_storage(draw.target)))
        following[_storage(draw.target)] = draw
    generator_state = torch.Generator().manual_seed(seed).get_state()
    held: dict[int, Tensor] = {}  # what a later draw changes a part of
    for draw, successor in zip(draws, reversed(successors), strict=True):
        key = _storage(draw.target)
        whole = held.pop(key) if key in held else torch.empty(draw.size_of_whole)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.set_rng_state(generator_state)
            draw.apply(whole)
            generator_state = torch.get_rng_state()
        if successor is None and key in names:
            yield names[key], whole.view(model.get_parameter(names[key]).shape).__getitem__
        elif successor is not None and successor.target.numel() < successor.size_of_whole:
            held[key] = whole
    for name, each in model.named_parameters():
        if not each.is_meta:  # made of ones, not of draws
            yield name, each.detach().__getitem__


class Draw:
    """One operation that wrote into a parameter."""

    def __init__(self, function: Any, target: Tensor, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.target, self.function = target, function
        self._arguments, self._keywords = arguments, keywords

    @property
    def size_of_whole(self) -> int:
        return self.target.untyped_storage().nbytes() // self.target.element_size()

    def apply(self, whole: Tensor, generator: torch.Generator | None = None) -> None:
        """Do it again in `whole`, the flat tensor of all of the parameter; None: with the global generator."""
        view = whole.as_strided(self.target.size(), self.target.stride(), self.target.storage_offset())
        keywords = self._keywords
        if generator is not None and any(each.name == "generator" for each in self.function._schema.arguments):  # noqa: SLF001
            keywords = {**keywords, "generator": generator}
        self.function(view, *self._arguments, **keywords)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes uninitialised tensors on the meta device and notes what is written into them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws: list[Draw] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.empty.memory_format:
            kwargs = {**kwargs, "device": torch.device("meta")}
        elif func._schema.is_mutable and isinstance(args[0], Tensor) and args[0].is_meta:  # noqa: SLF001
            self.draws.append(Draw(func, args[0].detach(), args[1:], kwargs))
        return func(*args, **kwargs)


def recorded_draws(folder: Path) -> tuple[nn.Module, list[tuple[str, Draw]]]:
    """A model without values, and what its construction writes into its parameters, in order."""
    model, draws = _record(folder)
    names = {_storage(each): name for name, each in model.named_parameters()}
    return model, [(names[_storage(draw.target)], draw) for draw in draws if _storage(draw.target) in names]


def _record(folder: Path) -> tuple[nn.Module, list[Draw]]:
    config = load_model_config(folder)
    with torch.random.fork_rng(devices=[]), _Recorder() as recorder:
        model = _models.from_config(config, dtype=torch.float32)
    return model, recorder.draws


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001
