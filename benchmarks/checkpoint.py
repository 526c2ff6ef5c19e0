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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import psutil
import torch
import typer
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from benchmarks.paired import Spread, ratios
from grpo.batching.batch import Batch
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import LocalState
from grpo.checkpoint.saver import Saver
from grpo.config.schema import Config
from grpo.models.public import public_shape
from grpo.workers.policy.dtensor import DTensorPolicy

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
_COPIED_AT_ONCE = 1 << 30
_HIDDEN, _FFN, _VOCABULARY = 768, 2048, 16000


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


@dataclass(frozen=True)
class Round:
    """Seconds, but `save_bytes`."""

    save_bytes: int
    disk: float  # as many bytes in one file, written 16 MiB at a time and forced to the disk
    sync_save: float
    copy: float  # as many bytes into memory of the CPU that is there already, page-locked for a GPU
    staging: float  # for which a save in the background holds training
    write: float  # of the files, beside one step of training
    quiet_step: float
    next_step: float  # the first after a save in the background has begun


def main(
    *,
    device: Annotated[Device, typer.Option()] = Device.cpu,
    model: Annotated[
        str | None, typer.Option(help="1b, 8b or the hub id of a shape that ships with the package")
    ] = None,
    parameters: Annotated[int, typer.Option(min=20_000_000, help="about as many, where no model is named")] = 10**8,
    tokens: Annotated[int | None, typer.Option(min=8, help="of a training step; default: 256, on a GPU 16384")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="of torch on the CPU")] = None,
    folder: Annotated[Path | None, typer.Option(help="on the disk to measure; default: the temporary folder")] = None,
    out: Annotated[Path, typer.Option(help="folder for checkpoint-DEVICE.md and .json")] = Path("docs/measurements"),
) -> None:
    """Save one policy again and again, at once and in the background. Exit 1: a ratio is out of its bounds."""
    if threads is not None:
        torch.set_num_threads(threads)
    policy = _policy(device.value, _shape(model, parameters))
    batch = _batch(tokens or (256 if device is Device.cpu else 16384), 256 if device is Device.cpu else 1024)
    for _ in range(2):
        policy.train(batch)
    with tempfile.TemporaryDirectory(prefix="grpo-checkpoint-", dir=folder) as place:
        measured = [_round(policy, batch, Path(place), device.value) for _ in range(rounds + 1)][1:]  # first: warm-up
    facts = _facts(policy, device.value, folder)
    found = judged(measured)
    out.mkdir(parents=True, exist_ok=True)
    page = markdown(measured, found, facts)
    (out / f"checkpoint-{device.value}.md").write_text(page)
    body = {"facts": facts, "ratios": {name: asdict(each) for name, each in found.items()}, "rounds": measured}
    (out / f"checkpoint-{device.value}.json").write_text(json.dumps(body, indent=1, default=asdict) + "\n")
    typer.echo(page)
    sys.exit(0 if all(within(name, each) for name, each in found.items()) else 1)


def judged(measured: list[Round]) -> dict[str, Spread]:
    """The ratios by name: rate of a save to the disk's, staging to a copy, the next step to a quiet one."""
    return {
        "sync save": ratios([each.disk for each in measured], [each.sync_save for each in measured]),
        "staging": ratios([each.staging for each in measured], [each.copy for each in measured]),
        "next step": ratios([each.next_step for each in measured], [each.quiet_step for each in measured]),
    }


def within(name: str, found: Spread) -> bool:
    low, high = BOUNDS[name]
    return (low is None or found.median >= low) and (high is None or found.median <= high)


def markdown(measured: list[Round], found: dict[str, Spread], facts: dict[str, str]) -> str:
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
    lines += [row(what, [getattr(each, field) for each in measured]) for what, field in (
        ("disk: one file, then fsync", "disk"), ("save at once, hashes and all", "sync_save"),
        ("plain copy", "copy"), ("staging", "staging"), ("files written beside the next step", "write"),
    )]  # fmt: skip
    quiet, busy = (Spread.of([getattr(each, name) for each in measured]) for name in ("quiet_step", "next_step"))
    lines += ["", f"A quiet step takes {quiet.median:.3f} s, the next one after staging {busy.median:.3f} s."]
    return "\n".join(lines) + "\n"


def _round(policy: DTensorPolicy, batch: Batch, place: Path, device: str) -> Round:
    state = LocalState(policy)
    at_once, beside = (_saver(place / name, state, in_background=name == "beside") for name in ("at_once", "beside"))
    size = sum(piece.data.nbytes for piece in policy.state()[0])
    disk = _timed(lambda: _write_plainly(place / "plain", size))
    (place / "plain").unlink()
    at_once.stage({}, {})
    saved: list[int] = []
    sync_save = _timed(lambda: saved.append(at_once.write(1, {})[0].saved.bytes))
    shutil.rmtree(place / "at_once")
    copy = _copy_seconds(size, device)

    def step() -> None:
        policy.train(batch)
        _wait(device)

    _wait(device)
    before = _timed(step)
    staging = _timed(lambda: (beside.stage({}, {}), _wait(device)))
    beside.write(1, {})
    next_step = _timed(step)
    reports = beside.poll() or beside.wait()
    after = _timed(step)
    shutil.rmtree(place / "beside")
    gc.collect()
    return Round(
        saved[0], disk, sync_save, copy, staging, reports[0].saved.write_seconds, (before + after) / 2, next_step
    )


_SAVERS: dict[Path, Saver] = {}


def _saver(folder: Path, state: LocalState, *, in_background: bool) -> Saver:
    """The same in every round, since its buffers are used again."""
    if folder not in _SAVERS:
        manager = CheckpointManager(
            folder, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
        )
        _SAVERS[folder] = Saver(manager, state, in_background=in_background)
    return _SAVERS[folder]


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _write_plainly(path: Path, size: int) -> None:
    chunk = memoryview(os.urandom(_CHUNK))
    with path.open("xb", buffering=0) as file:
        for start in range(0, size, _CHUNK):
            file.write(chunk[: size - start])
        os.fsync(file.fileno())


def _copy_seconds(size: int, device: str) -> float:
    part = min(size, _COPIED_AT_ONCE)
    source = torch.ones(part, dtype=torch.uint8, device=device)
    target = torch.ones(part, dtype=torch.uint8, pin_memory=device == "cuda")
    target.copy_(source)
    _wait(device)
    started = time.perf_counter()
    for start in range(0, size, part):
        target[: size - start].copy_(source[: size - start], non_blocking=True)
    _wait(device)
    return time.perf_counter() - started


def _shape(model: str | None, parameters: int) -> LlamaConfig:
    if model is None:
        per_layer = 4 * _HIDDEN**2 + 3 * _HIDDEN * _FFN
        layers = max(1, round((parameters - _HIDDEN * _VOCABULARY) / per_layer))
        return LlamaConfig(
            vocab_size=_VOCABULARY, hidden_size=_HIDDEN, intermediate_size=_FFN, num_hidden_layers=layers,
            num_attention_heads=12, num_key_value_heads=12, tie_word_embeddings=True, pad_token_id=0,
        )  # fmt: skip
    known = {"1b": "meta-llama/Llama-3.2-1B", "8b": "meta-llama/Llama-3.1-8B"}
    folder = public_shape(known.get(model, model))
    if folder is None:
        raise typer.BadParameter(f"{model}: there are {', '.join(known)} and the public shapes of grpo.models.public")
    return AutoConfig.from_pretrained(folder)


def _policy(device: str, shape: LlamaConfig) -> DTensorPolicy:
    config = Config.model_validate({
        "policy": {
            "model_name": "measured", "precision": "float32" if device == "cpu" else "bfloat16",
            "max_total_sequence_length": 1024, "logprob_chunk_size": 2048,
            "sequence_packing": {"enabled": True, "train_mb_tokens": 16384, "logprob_mb_tokens": 16384},
        },
        "loss_fn": {"reference_policy_kl_penalty": 0.0, "force_on_policy_ratio": True},
        "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
        "env": {},
    })  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        built = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    return DTensorPolicy(built, config, device=device)


def _batch(tokens: int, length: int) -> Batch:
    rows = max(1, tokens // length)
    length = tokens // rows
    total = rows * length
    mask = torch.ones(total, dtype=torch.bool)
    mask[::length] = False
    return Batch(
        tokens=torch.randint(0, 1000, (total,)), lengths=torch.full((rows,), length), mask=mask,
        generation_logprobs=torch.full((total,), -7.0), advantages=torch.linspace(-1, 1, rows) + 0.1,
        old_logprobs=None, reference_logprobs=None,
    )  # fmt: skip


def _facts(policy: DTensorPolicy, device: str, folder: Path | None) -> dict[str, str]:
    parameters = sum(each.numel() for name, each in policy.export_weights())
    gpu = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    return {
        "model": f"{parameters / 1e6:.0f} M parameters on {device}{gpu}",
        "machine": f"{psutil.cpu_count()} cores, {platform.machine()}, torch {torch.__version__} with "
        f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the end",
        "disk": str(folder or Path(tempfile.gettempdir())),
        "command": " ".join(["python -m benchmarks.checkpoint", *sys.argv[1:]]),
    }


if __name__ == "__main__":
    typer.run(main)
