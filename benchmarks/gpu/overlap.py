"""`python -m benchmarks.gpu.overlap`: asynchronous training of 1B against its bound, one GPU trains and one samples.

Then synchronous training with both GPUs shared by policy and engines. Weights are random; see benchmarks/overlap.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.step import model_folder
from benchmarks.overlap import ASYNC, SYNC, compare
from benchmarks.peers_task import write_prompts

RECIPE = Path(__file__).with_name("overlap.yaml")
SEPARATE = ("policy.generation.colocated.resources.gpus_per_node=1",)
TRAINED = 8  # steps of a stretch


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    *,
    out: Annotated[Path, typer.Option(help="folder for overlap.json")],
    steps: Annotated[int, typer.Option(min=1, help="of each stretch, after three to warm up")] = TRAINED,
    rounds: Annotated[int, typer.Option(min=1, help="of three stretches")] = 2,
    only_async: Annotated[bool, typer.Option(help="leave out the synchronous run")] = False,
) -> None:
    """Exit code 1: less than the goal."""
    with tempfile.TemporaryDirectory(prefix="grpo-overlap-") as folder:
        given = [*files(Path(folder)), *(overrides or [])]
        shared = None if only_async else [*given, *SYNC]
        compare(str(RECIPE), separate(given), shared, steps=steps, rounds=rounds, out=out)


def separate(given: Sequence[str]) -> list[str]:
    """The overrides of the asynchronous run."""
    return [*given, *ASYNC, *SEPARATE]


def files(folder: Path) -> list[str]:
    """Make what the recipe cannot name: the model's folder and the prompts."""
    model = model_folder(SHAPES_BY_NAME["1b"], folder / "model")
    data = write_prompts(folder / "prompts.jsonl")
    return [f"policy.model_name={model}", f"data.train.data_path={data}", "policy.generation.backend=vllm"]


if __name__ == "__main__":
    typer.run(main)
