"""Whole steps of the trainer: how much of one is neither generation, log-probs, training nor refit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.shapes import Shape
from benchmarks.paired import Spread
from benchmarks.peers_task import write_prompts
from grpo.models.shipped import SHAPES

RECIPE = Path(__file__).with_name("step.yaml")
ROOT = RECIPE.parents[2]
WORK = ("generation", "logprobs", "policy_training", "refit")
AROUND = ("data", "rewards", "advantages", "other")
WARM_UP = 2


def overhead(
    shape: Shape, folder: Path, *, engine: str, overrides: Sequence[str] = (), limit: float = 300.0
) -> Iterator[dict[str, Any]]:
    """Train a few steps in a process of its own and read its run directory.

    After `limit` seconds it is ended, and the steps that it has done count. Raises RuntimeError with the end of its
    output if it fails, or none of them does.
    """
    model = model_folder(shape, folder / "model")
    data = write_prompts(folder / "prompts.jsonl")
    command = [
        sys.executable, "-m", "grpo", "train", str(RECIPE), "--fresh", f"policy.model_name={model}",
        f"policy.generation.backend={engine}", f"data.train.data_path={data}", f"logger.log_dir={folder / 'run'}",
        *overrides,
    ]  # fmt: skip
    log, metrics = folder / "step.log", folder / "run" / "metrics.jsonl"
    with log.open("wb") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    if code or (code is None and len(lines) <= WARM_UP):
        last = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
        ended = f"was ended after {limit:.0f} s" if code is None else f"ended with {code}"
        raise RuntimeError(f"grpo train {ended}; the last lines that it printed:\n{last}")
    found = shares([json.loads(line) for line in lines if line.endswith("}")])
    yield {"kind": "step", "shape": shape.title, "engine": engine, "whole": code == 0} | found


def model_folder(shape: Shape, folder: Path) -> Path:
    """A folder of the shape's config and a byte tokenizer, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    shape.config().save_pretrained(folder)
    for file in (SHAPES / "tiny-llama").iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            shutil.copy(file, folder)
    return folder


def shares(steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Median seconds of each phase after the warm-up, and the share of a step that is around the work."""
    kept = [each for each in steps if "timing/total" in each][WARM_UP:]
    if not kept:
        raise RuntimeError(f"{len(steps)} steps were logged, of which {WARM_UP} are warm-up: none is left")
    phases = {
        name: Spread.of([each.get(f"timing/{name}", 0.0) for each in kept]).median for name in ("total", *WORK, *AROUND)
    }
    around = [sum(each.get(f"timing/{name}", 0.0) for name in AROUND) / each["timing/total"] for each in kept]
    found = Spread.of(around)
    return {
        "seconds": phases,
        "steps": len(kept),
        "around": {"median": found.median, "low": found.low, "high": found.high},
    }
