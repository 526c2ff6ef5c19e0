"""Compare saving a policy's state with the disk and with a plain copy: `python -m benchmarks.checkpoint --help`.

Every round takes all its measurements one after another, so that what slows one slows the others; judged are the
medians of the rounds' ratios.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoConfig, LlamaConfig

from benchmarks.paired import Spread, ratios
from benchmarks.trained import Layout, Trained, random_batch, trained
from grpo.batching.batch import Batch
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.saver import Saver
from grpo.models.public import public_shape

NAMES = {
    "sync save": "disk rate that a save at once reaches", "staging": "time that training is held, to a copy's",
    "next step": "next step while the files are written, to a quiet one",
}  # fmt: skip
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "sync save": (0.8, None),
    "staging": (None, 1.2),
    "next step": (None, 1.03),
}
_CHUNK = 16 << 20
_PINNED_SECONDS = 1 / 54e9  # a byte, from a GPU to page-locked memory
_HIDDEN, _FFN, _VOCABULARY = 768, 2048, 16000


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Backend(StrEnum):
    dtensor = "dtensor"
    megatron = "megatron"


@dataclass(frozen=True)
class Round:
    """Seconds, but `save_bytes`. None: not measured."""

    save_bytes: int
    copy: float  # as many bytes into memory of the CPU that is there already; for GPUs at 54 GB/s each
    staging: float  # for which a save in the background holds training
    quiet_step: float
    next_step: float  # the first after a save in the background has begun
    write: float | None  # of the files, beside training
    second_step: float | None = None  # after `next_step`
    disk: float | None = None  # files of the same sizes, written 16 MiB at a time, all at once, and forced to the disk
    sync_save: float | None = None


app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    device: Annotated[Device, typer.Option()] = Device.cpu,
    ranks: Annotated[int, typer.Option(min=1, help="more than one: each in a process of its own")] = 1,
    backend: Annotated[Backend, typer.Option()] = Backend.dtensor,
    model: Annotated[
        str | None, typer.Option(help="1b, 8b or the hub id of a shape that ships with the package")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="fewer than the model has")] = None,
    parameters: Annotated[int, typer.Option(min=20_000_000, help="about as many, where no model is named")] = 10**8,
    tokens: Annotated[int | None, typer.Option(min=8, help="of a training step; default: 256, on a GPU 65536")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    at_once: Annotated[bool, typer.Option(help="measure saves at once, and the disk")] = True,
    finish: Annotated[bool, typer.Option(help="let the last save in the background end")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="of torch on the CPU")] = None,
    folder: Annotated[Path | None, typer.Option(help="on the disk to measure; default: the temporary folder")] = None,
    out: Annotated[Path, typer.Option(help="folder for NAME.md and .json")] = Path("docs/measurements"),
    name: Annotated[str | None, typer.Option(help="default: checkpoint-DEVICE")] = None,
) -> None:
    """Save one policy again and again, at once and in the background. Exit 1: a ratio is out of its bounds."""
    if threads is not None:
        torch.set_num_threads(threads)
    on_cpu = device is Device.cpu
    layout = Layout(device.value, ranks, backend.value, 16384 if ranks == 1 else 8192)
    batch = random_batch(tokens or (256 if on_cpu else 65536), 256 if on_cpu else 1024)
    with (
        trained(_shape(model, parameters, layers), layout) as policy,
        tempfile.TemporaryDirectory(prefix="grpo-checkpoint-", dir=folder, ignore_cleanup_errors=True) as place,
    ):
        bench = _Bench(policy, layout, batch, Path(place))
        first = bench.first_staging()
        typer.echo(first, err=True)
        measured = []
        for number in range(rounds):
            last = number == rounds - 1
            measured.append(bench.round(at_once=at_once, finish=finish or not last))
            typer.echo(str(measured[-1]), err=True)
        facts = {**_facts(bench, layout, folder), "first staging": first}
        found = judged(measured)
        out.mkdir(parents=True, exist_ok=True)
        page, name = markdown(measured, found, facts), name or f"checkpoint-{device.value}"
        (out / f"{name}.md").write_text(page)
        body = {"facts": facts, "ratios": {key: asdict(each) for key, each in found.items()}, "rounds": measured}
        (out / f"{name}.json").write_text(json.dumps(body, indent=1, default=asdict) + "\n")
        typer.echo(page)
    code = 0 if all(within(key, each) for key, each in found.items()) else 1
    if not finish and ranks == 1:
        os._exit(code)  # the threads that still write for it would be waited for
    sys.exit(code)


def judged(measured: Sequence[Round]) -> dict[str, Spread]:
    """The ratios by name: rate of a save to the disk's, staging to a copy, the next step to a quiet one."""
    at_once = [(each.disk, each.sync_save) for each in measured if each.disk is not None and each.sync_save is not None]
    found = {"sync save": ratios(*zip(*at_once, strict=True))} if at_once else {}
    return {
        **found,
        "staging": ratios([each.staging for each in measured], [each.copy for each in measured]),
        "next step": ratios([each.next_step for each in measured], [each.quiet_step for each in measured]),
    }


def within(name: str, found: Spread) -> bool:
    low, high = BOUNDS[name]
    return (low is None or found.median >= low) and (high is None or found.median <= high)


def markdown(measured: Sequence[Round], found: dict[str, Spread], facts: dict[str, str]) -> str:
    """The page that is committed."""
    size = measured[0].save_bytes

    def rate(seconds: float) -> str:
        return f"{size / seconds / 1e9:.2f} GB/s"

    def row(what: str, values: list[float]) -> str:
        spread = Spread.of(values)
        return f"| {what} | {spread.median:.3f} s ({spread.low:.3f} to {spread.high:.3f}) | {rate(spread.median)} |"

    lines = ["# Checkpoints: speed", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["| | median (range) | bound | |", "|---|---|---|---|"]
    for name, spread in found.items():
        low, high = BOUNDS[name]
        bound = f"at least {low}" if low is not None else f"at most {high}"
        verdict = "kept" if within(name, spread) else "NOT KEPT"
        figures = f"{spread.median:.3f} ({spread.low:.3f} to {spread.high:.3f})"
        lines.append(f"| {NAMES[name]} | {figures} | {bound} | {verdict} |")
    lines += ["", f"{size / 1e9:.2f} GB a checkpoint (float32 masters and Adam's moments), {len(measured)} rounds:", ""]
    lines += ["| | median (range) | |", "|---|---|---|"]
    for what, field in (
        ("disk: files of the same sizes, then fsync", "disk"), ("save at once, hashes and all", "sync_save"),
        ("plain copy", "copy"), ("staging", "staging"), ("files written beside training", "write"),
    ):  # fmt: skip
        values = [getattr(each, field) for each in measured if getattr(each, field) is not None]
        if values:
            lines.append(row(what, values))
    quiet, busy = (Spread.of([getattr(each, name) for each in measured]) for name in ("quiet_step", "next_step"))
    text = f"A quiet step takes {quiet.median:.3f} s, the next one after staging {busy.median:.3f} s"
    second = [each.second_step for each in measured if each.second_step is not None]
    lines += ["", text + (f", the one after it {Spread.of(second).median:.3f} s." if second else ".")]
    return "\n".join(lines) + "\n"


class _Bench:
    """One policy, and what its saves need, used again in every round."""

    def __init__(self, policy: Trained, layout: Layout, batch: Batch, place: Path) -> None:
        self.policy, self._layout, self._batch, self._place = policy, layout, batch, place
        self._at_once, self._beside = (
            Saver(_manager(place / name), policy.ranks, in_background=name == "beside")
            for name in ("at once", "beside")
        )
        for _ in range(2):
            policy.train(batch)
        self.size = policy.ranks.stage(copy=False).bytes
        self._sizes: list[int] | None = None  # of the files of a checkpoint, once one was written
        self._copy = _Copy(self.size // layout.ranks) if layout.device == "cpu" else None

    def first_staging(self) -> str:
        """What making the buffers costs the steps beside it, and the first save then; what it staged is not written."""
        quiet = self._step()
        self.policy.ranks.prepare()
        beside = [self._step() for _ in range(3)]
        seconds = _timed(lambda: self.policy.ranks.stage(copy=True))
        self._step()
        steps = ", ".join(f"{each:.2f}" for each in beside)
        return f"{seconds:.2f} s, after steps of {steps} s while memory was made (a quiet one: {quiet:.2f} s)"

    def round(self, *, at_once: bool, finish: bool) -> Round:
        """Copy and staging are measured alike: each after a step, when nothing is in a cache."""
        disk, sync_save = self._saved_at_once() if at_once else (None, None)
        before = self._step()
        copy = _PINNED_SECONDS * self.size / self._layout.ranks if self._copy is None else _timed(self._copy.run)
        self._step()
        staging = _timed(lambda: self._beside.stage({}, {}))
        self._beside.write(1, {})
        next_step, second_step, write = self._step(), self._step(), None
        if finish:
            (report,) = self._beside.wait()
            write = report.saved.write_seconds
            shutil.rmtree(self._place / "beside")
        gc.collect()
        after = self._step() if finish else before
        return Round(self.size, copy, staging, (before + after) / 2, next_step, write, second_step, disk, sync_save)

    def _saved_at_once(self) -> tuple[float, float]:
        """The disk is measured before it, where the sizes are known, and after it: new blocks may be slower."""
        folder = self._place / "at once"
        self._at_once.stage({}, {})
        before = None if self._sizes is None else self._disk(self._sizes)
        sync_save = _timed(lambda: self._at_once.write(1, {}))
        self._sizes = [path.stat().st_size for path in folder.glob("*/*.safetensors")]
        shutil.rmtree(folder)
        after = self._disk(self._sizes)
        return after if before is None else (before + after) / 2, sync_save

    def _disk(self, sizes: Sequence[int]) -> float:
        seconds = _timed(lambda: _write_plainly(self._place / "plain", sizes))
        shutil.rmtree(self._place / "plain")
        return seconds

    def _step(self) -> float:
        return _timed(lambda: self.policy.train(self._batch))


class _Copy:
    """Of as many bytes as a rank has, in one call, between memory that has been used before."""

    def __init__(self, size: int) -> None:
        self._source, self._target = torch.ones(size // 4), torch.ones(size // 4)

    def run(self) -> None:
        self._target.copy_(self._source)


def _manager(folder: Path) -> CheckpointManager:
    return CheckpointManager(folder, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={})


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _write_plainly(folder: Path, sizes: Sequence[int]) -> None:
    """Files of these sizes, all at the same time."""
    chunk = memoryview(os.urandom(_CHUNK))
    folder.mkdir()

    def write(number: int) -> None:
        with (folder / str(number)).open("xb", buffering=0) as file:
            for start in range(0, sizes[number], _CHUNK):
                file.write(chunk[: sizes[number] - start])
            os.fsync(file.fileno())

    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(write, range(len(sizes))))


def _shape(model: str | None, parameters: int, layers: int | None) -> LlamaConfig:
    if model is None:
        per_layer = 4 * _HIDDEN**2 + 3 * _HIDDEN * _FFN
        wanted = layers or max(1, round((parameters - _HIDDEN * _VOCABULARY) / per_layer))
        return LlamaConfig(
            vocab_size=_VOCABULARY, hidden_size=_HIDDEN, intermediate_size=_FFN, num_hidden_layers=wanted,
            num_attention_heads=12, num_key_value_heads=12, tie_word_embeddings=True, pad_token_id=0,
        )  # fmt: skip
    known = {"1b": "meta-llama/Llama-3.2-1B", "8b": "meta-llama/Llama-3.1-8B"}
    folder = public_shape(known.get(model, model))
    if folder is None:
        raise typer.BadParameter(f"{model}: there are {', '.join(known)} and the public shapes of grpo.models.public")
    shape: LlamaConfig = AutoConfig.from_pretrained(folder)
    shape.num_hidden_layers = layers or shape.num_hidden_layers
    return shape


def _facts(bench: _Bench, layout: Layout, folder: Path | None) -> dict[str, str]:
    gpu = f", {torch.cuda.get_device_name()}" if layout.device == "cuda" else ""
    return {
        "model": f"{bench.size / 12 / 1e6:.0f} M parameters; {layout.title}{gpu}",
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, torch {torch.__version__} with "
        f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the end",
        "disk": str(folder or Path(tempfile.gettempdir())),
        "command": " ".join(["python -m benchmarks.checkpoint", *sys.argv[1:]]),
    }


if __name__ == "__main__":
    app()
