"""`python -m benchmarks.gpu.peers`: whole GRPO steps of a 1B model, ours and TRL's with colocated vLLM, in turn.

Both sides stay started on one GPU, or with two each on its own, and only one of them works at a time: what the other
holds is memory. TRL's loads when ours has taken its first steps, so that neither measures memory while it changes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.shapes import SHAPES_BY_NAME, Shape
from benchmarks.gpu.step import model_folder
from benchmarks.paired import Block, ratios
from benchmarks.peers_task import write_prompts
from benchmarks.side import Side, SideError

OURS, TRL = "ours", "TRL"
TOKENS_A_STEP = 16 * 16 * 512
WARM_UP = 1  # step
TRL_MEMORY = 0.15  # 21 GB, of which weights 3 and 256 sequences of 540 tokens 4.5
GOAL = 0.6  # of TRL's time
THREADS = 8


def main() -> int:
    """Exit code 1: ours takes more than the goal. 2: a side failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.peers", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for peers.json and the sides' logs")
    parser.add_argument("--steps", type=int, default=4, help="of each side, after one to warm up")
    parser.add_argument("override", nargs="*", help="of our recipe, benchmarks/gpu/step.yaml")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="grpo-peers-") as folder:
        commands = side_commands(Path(folder), options.out, options.override)
        try:
            blocks = in_turn(commands, options.out, options.steps)
        except SideError as error:
            print(error, file=sys.stderr)
            return 2
    found = summary(blocks)
    print(json.dumps({key: found[key] for key in ("seconds", "parts", "ratio")}))
    return 0 if found["ratio"]["median"] <= GOAL else 1


def side_commands(folder: Path, out: Path, overrides: list[str]) -> dict[str, list[str]]:
    """Command lines of both sides on one model with random weights."""
    model = weights_folder(folder / "model")
    data = write_prompts(folder / "prompts.jsonl")
    return {
        OURS: [
            sys.executable, "-m", "benchmarks.gpu.peers_ours", "--model", str(model), "--prompts", str(data),
            "--run-directory", str(out.absolute() / "run"), *overrides,
        ],
        TRL: [
            sys.executable, "-m", "benchmarks.gpu.peers_trl", "--model", str(model), "--output-directory",
            str(folder / "trl"), "--memory", str(TRL_MEMORY),
        ],
    }  # fmt: skip


class Untied(Shape):
    """With an output layer of its own."""

    def config(self) -> Any:
        found = super().config()
        found.tie_word_embeddings = False
        return found


def weights_folder(folder: Path) -> Path:
    """Llama 3.2 1B, untied as when TRL's figure was first taken, with random weights in bfloat16."""
    tied = SHAPES_BY_NAME["1b"]
    shape = Untied(tied.title, tied.folder, tied.layers)
    model_folder(shape, folder)
    model: Any = shape.build("cuda")
    model.to(torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    return folder


def in_turn(commands: dict[str, list[str]], out: Path, steps: int) -> dict[str, list[Block]]:
    """One step of each in turn, both started; what is known so far is written after every round."""
    sides: list[Side] = []
    try:
        last = torch.cuda.device_count() - 1
        for number, (name, command) in enumerate(commands.items()):
            sides.append(start(name, command, out, str(min(number, last))))
        for side in sides:
            warm_up(side)
        blocks: dict[str, list[Block]] = {side.name: [] for side in sides}
        for _ in range(steps):
            for side in sides:
                blocks[side.name].append(checked(side, side.run(1)))
            (out / "peers.json").write_text(json.dumps(summary(blocks), indent=1) + "\n")
        return blocks
    finally:
        for side in sides:
            side.close()


def warm_up(side: Side) -> None:
    """Until the first step, which compiles and allocates, is over."""
    if side.name == TRL:
        side.go_on()
    side.wait_until_ready()
    said(side, side.run(WARM_UP))


def start(name: str, command: list[str], out: Path, gpu: str) -> Side:
    environment = {"CUDA_VISIBLE_DEVICES": gpu, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return Side(name, command, out / f"{name}.log", THREADS, environment)


def checked(side: Side, block: Block) -> Block:
    if round(side.facts["tokens"]) != TOKENS_A_STEP:
        raise SideError(f"{side.name} sampled {side.facts['tokens']:g} tokens a step, not {TOKENS_A_STEP}")
    return said(side, block)


def said(side: Side, block: Block) -> Block:
    free, total = torch.cuda.mem_get_info()
    held = f"{(total - free) / 2**30:.0f} GiB of the first GPU are held"
    print(time.strftime("%H:%M:%S"), side.name, round(block.seconds, 3), block.parts, held, flush=True)
    return block


def summary(blocks: dict[str, list[Block]]) -> dict[str, Any]:
    """Medians, and the ratio of each step to the other side's of the same round."""
    ours, theirs = ([block.seconds for block in blocks[name]] for name in (OURS, TRL))
    spread = ratios(ours, theirs)
    names = {name: sorted({part for block in found for part in block.parts}) for name, found in blocks.items()}
    return {
        "seconds": {name: median(block.seconds for block in found) for name, found in blocks.items()},
        "parts": {
            name: {part: median(block.parts.get(part, 0.0) for block in found) for part in names[name]}
            for name, found in blocks.items()
        },
        "ratio": {"median": spread.median, "low": spread.low, "high": spread.high},
        "every": {name: [(block.seconds, block.parts) for block in found] for name, found in blocks.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
