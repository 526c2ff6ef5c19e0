"""`python -m benchmarks.gpu --out FOLDER`: every part in a process of its own, the most valuable first."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.goals import missed
from benchmarks.gpu.page import markdown

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = "results.jsonl", "gpu.md"
FAILED, MISSED = 2, 1
PACKAGES = ("torch", "transformers", "megatron-core", "vllm")


@dataclass(frozen=True)
class Part:
    """A measurement in a process of its own."""

    name: str
    about: str
    needs: float  # seconds: with less left it is not begun
    most: float  # seconds it may take
    gpus: int = 1


PARTS = (
    Part("dtensor-1b", "the PyTorch worker against a bare loop, 1B; log-probs; memory; where the time goes", 45, 145),
    Part("dtensor-8b", "the PyTorch worker on as many layers of 8B as fit: MFU, memory, where the time goes", 40, 130),
    Part("megatron-1b", "the Megatron-Core worker against a bare loop, 1B", 45, 130),
    Part("step", "whole steps of the trainer with vLLM, 1B: what is around the work", 80, 145),
    Part("dtensor-8b-paired", "the PyTorch worker against a bare loop on eight layers of 8B", 45, 90),
    Part("offload", "the PyTorch worker with its state on the CPU, 1B: memory, time", 30, 90),
    Part("limits", "what the GPU does at best", 15, 40),
    Part("dtensor-8b-2gpu", "the PyTorch worker against a bare FSDP2 loop, 8B over two GPUs", 40, 145, gpus=2),
    Part("megatron-8b-2gpu", "the Megatron-Core worker against a bare loop, 8B over two GPUs", 40, 145, gpus=2),
    Part("megatron-8b-paired", "the Megatron-Core worker against a bare loop on eight layers of 8B", 45, 130),
    Part("dtensor-8b-8gpu", "the PyTorch worker against a bare FSDP2 loop, 8B over eight GPUs", 40, 145, gpus=8),
    Part("megatron-8b-8gpu", "the Megatron-Core worker against a bare loop, 8B over eight GPUs", 40, 145, gpus=8),
)
CLOSING_S = 15.0  # of a part's time, for what follows the last round


def main() -> int:
    """Exit code 2: a part failed. 1: a goal was missed. 0: neither."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {RESULTS} and {PAGE}")
    parser.add_argument("--seconds", type=float, default=520.0, help="for all parts; what no time is left for is named")
    parser.add_argument("--parts", help="some of: " + ", ".join(each.name for each in PARTS))
    parser.add_argument("--size", choices=["h200", "tiny"], default="h200", help="tiny: on a CPU, to try the programme")
    parser.add_argument("--engine", choices=["vllm", "hf"], default="vllm", help="of the whole steps")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        return run_part(options.only, options)
    by_name = {each.name: each for each in PARTS}
    names = options.parts.split(",") if options.parts else [each.name for each in PARTS if each.gpus <= gpus()]
    unknown = sorted(set(names) - set(by_name))
    if unknown:
        parser.error(f"--parts {unknown[0]}: one of {', '.join(by_name)}")
    return run_all([by_name[name] for name in names], options)


def gpus() -> int:
    """On this machine; 1 without any."""
    import torch

    return max(1, torch.cuda.device_count())


def run_all(parts: Sequence[Part], options: argparse.Namespace) -> int:
    """Each part in turn, as long as there is time; the page is written after each."""
    started = time.monotonic()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).unlink(missing_ok=True)
    record(out, "machine", environment())
    for part in parts:
        left = options.seconds - (time.monotonic() - started)
        if left < part.needs and options.size != "tiny":
            record(out, part.name, {"kind": "skipped", "left": left, "needs": part.needs})
            print(f"{part.name}: not begun, {left:.0f} s are left of the {part.needs:.0f} that it needs", flush=True)
        else:
            print(f"{part.name}: {part.about} ({time.monotonic() - started:.0f} s so far)", flush=True)
            start(part, min(left, part.most), options)
        write_page(out)
    found = records(out)
    print((out / PAGE).read_text(), flush=True)
    print(f"{time.monotonic() - started:.0f} s in all; written: {out / RESULTS}, {out / PAGE}", flush=True)
    if any(each["kind"] == "failure" for each in found):
        return FAILED
    return MISSED if missed(found) else 0


def start(part: Part, limit: float, options: argparse.Namespace) -> None:
    """Run a part and wait for it; a failure becomes a record."""
    launcher = []
    if part.gpus > 1:
        launcher = [
            "-m", "torch.distributed.run", "--nproc-per-node", str(part.gpus), "--master-addr", "127.0.0.1",
            "--master-port", str(free_port()),
        ]  # fmt: skip
    command = [
        sys.executable, *launcher, "-m", "benchmarks.gpu", "--only", part.name, "--out", str(options.out.resolve()),
        "--seconds", str(limit), "--size", options.size, "--engine", options.engine,
    ]  # fmt: skip
    paths = [str(ROOT), *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    if part.name != "step":  # vLLM's own allocator does not go with it
        settings["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    started = time.monotonic()
    try:
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, timeout=limit, check=False).returncode
        why = f"it ended with {code}"
    except subprocess.TimeoutExpired:
        code, why = FAILED, f"it was ended after {limit:.0f} s"
    spent = time.monotonic() - started
    reported = any(each["part"] == part.name and each["kind"] == "failure" for each in records(options.out))
    if code and not reported:
        record(options.out, part.name, {"kind": "failure", "traceback": why})
    record(options.out, part.name, {"kind": "took", "seconds": spent})
    print(f"{part.name}: {why if code else 'done'}, {spent:.0f} s", flush=True)


def run_part(name: str, options: argparse.Namespace) -> int:
    """In the part's own process: write each record as it comes, and a traceback where it fails.

    Of several ranks the first writes.
    """
    if int(os.environ.get("RANK", "0")):
        for _ in measured(name, options):
            pass
        return 0
    try:
        for found in measured(name, options):
            record(options.out, name, found)
            print(
                f"  {name}: {found['kind']} {found.get('cap', '')} {found.get('ratio', found.get('mfu', ''))}",
                flush=True,
            )
    except Exception:  # noqa: BLE001 (what failed is a result of this programme, and its exit code)
        record(options.out, name, {"kind": "failure", "traceback": traceback.format_exc()})
        traceback.print_exc()
        return FAILED
    return 0


def measured(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The records of a part."""
    from benchmarks.gpu import parts, ranks
    from benchmarks.gpu.step import overhead

    size = parts.H200 if options.size == "h200" else parts.TINY
    deadline = parts.deadline_in(options.seconds - CLOSING_S)
    if name == "dtensor-1b":
        yield from parts.paired(parts.dtensor_side(), size.small, size, deadline)
    elif name == "dtensor-8b":
        yield from parts.alone(parts.dtensor_side(), size, deadline)
    elif name.endswith("-8b-paired"):
        side = parts.dtensor_side() if name.startswith("dtensor") else parts.megatron_side()
        large = size.large.with_layers(parts.paired_layers(size))
        yield from parts.paired(side, large, size, deadline, caps=size.caps[:1])
    elif name == "megatron-1b":
        yield from parts.paired(parts.megatron_side(), size.small, size, deadline)
    elif name == "step":
        with tempfile.TemporaryDirectory(prefix="grpo-step-") as folder:
            small = () if size.device == "cuda" else TINY_STEP
            yield from overhead(
                size.small, Path(folder), engine=options.engine, overrides=small, limit=max(30.0, options.seconds - 5)
            )
    elif name == "offload":
        yield from ranks.offloaded(size.small, size, deadline)
    elif name == "limits":
        yield from parts.limits(size)
    else:
        yield from ranks.over_ranks(name.partition("-")[0], size.large, size, deadline)


def free_port() -> int:
    """Of this host."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


TINY_STEP = (
    "cluster.gpus_per_node=0", "policy.precision=float32", "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=2", "policy.train_global_batch_size=4", "policy.generation.min_new_tokens=4",
    "policy.generation.max_new_tokens=4", "policy.max_total_sequence_length=64", "grpo.max_num_steps=4",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Versions and the GPU."""
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"kind": "machine", "versions": versions, "python": sys.version.split()[0], "gpu": gpu, "argv": sys.argv[1:]}


def record(out: Path, part: str, found: dict[str, Any]) -> None:
    """Append one line; whatever happens later, it is kept."""
    with (out / RESULTS).open("a") as file:
        file.write(json.dumps({"part": part, **found}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / RESULTS).read_text().splitlines()]


def write_page(out: Path) -> None:
    (out / PAGE).write_text(markdown(records(out)))


if __name__ == "__main__":
    sys.exit(main())
