"""Compare a whole GRPO step with TRL's: `nox -s bench -- peers`, or `python -m benchmarks.peers --help`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from benchmarks.paired import Block
from benchmarks.peers_report import PEER, Machine, Measured, cpu_model, details, markdown, table, verdict
from benchmarks.peers_task import prompts
from benchmarks.side import Side, SideError
from grpo.models.shipped import materialise

THREADS = 2
WARM_UP_STEPS = 5
TOKENS_A_STEP = 8 * 8 * 64
JUDGED = "ours, hf"

progress = Console(stderr=True)


class Engine(StrEnum):
    hf = "hf"
    vllm = "vllm"


def main(
    *,
    ours: Annotated[str, typer.Option(metavar="PYTHON", help="interpreter that has grpo, and vLLM for that engine")],
    theirs: Annotated[str, typer.Option(metavar="PYTHON", help="interpreter that has TRL (ci/locks/peers.txt)")],
    rounds: Annotated[int, typer.Option(min=1, help="each side takes its steps once a round")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="of each side in each round")] = 10,
    engine: Annotated[list[Engine] | None, typer.Option(help="of ours, may be repeated; default: all")] = None,
    output: Annotated[Path, typer.Option(help="page to write")] = Path("docs/measurements/peers.md"),
) -> None:
    """Run whole GRPO steps of ours and of TRL in turn, and write how they compare.

    Exit 1: with the hf engine ours takes more than 0.7 of TRL's time. Exit 2: a side failed.
    """
    engines = engine or list(Engine)
    try:
        with tempfile.TemporaryDirectory(prefix="grpo-peers-") as folder:
            commands = side_commands(Path(folder), ours, theirs, engines)
            sides, busy = measure(commands, Path(folder), rounds=rounds, steps=steps)
    except SideError as error:
        progress.print(str(error), markup=False)
        raise typer.Exit(2) from error
    machine = Machine(cpu_model(), psutil.cpu_count() or 1, busy)
    command = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(("OMP_", "GOMP_"))]
    command += ["nox", "-s", "bench", "--", "peers", f"--rounds={rounds}", f"--steps={steps}"]
    command += [f"--engine={each}" for each in engine or ()]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(markdown(sides, machine, command=command, rounds=rounds, steps=steps))
    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(table(sides))
    for line in (*(details(name, measured) for name, measured in sides.items()), machine.text, f"written: {output}"):
        out.print(line)
    if JUDGED in sides:
        kept, words = verdict(JUDGED, sides[JUDGED], sides[PEER])
        out.print(words)
        sys.exit(0 if kept else 1)


def side_commands(folder: Path, ours: str, theirs: str, engines: Sequence[str]) -> dict[str, list[str]]:
    """Command lines by name, each engine of ours next to the peer as far as that goes; what they read is written."""
    prompt_file = folder / "prompts.jsonl"
    prompt_file.write_text("".join(json.dumps({"prompt": prompt, "answer": ""}) + "\n" for prompt in prompts()))
    common = ["--model", str(materialise("tiny-llama", folder / "model")), "--threads", str(THREADS)]
    own = {
        f"ours, {engine}": [
            ours, "-m", "benchmarks.peers_ours", *common, "--engine", engine, "--prompts", str(prompt_file),
            "--run-directory", str(folder / f"run-{engine}"),
        ]
        for engine in engines
    }  # fmt: skip
    peer = [theirs, "-m", "benchmarks.peers_trl", *common, "--output-directory", str(folder / "trl")]
    first, *others = own.items()
    return dict([first, (PEER, peer), *others])


def measure(
    commands: dict[str, list[str]], folder: Path, *, rounds: int, steps: int
) -> tuple[dict[str, Measured], float]:
    """All sides' rounds, and how many cores other processes kept busy meanwhile.

    Raises SideError: a side failed, or did not sample the tokens that it should.
    """
    with ExitStack() as stack:
        sides = []
        for number, (name, command) in enumerate(commands.items()):
            progress.print(f"starting {name}")
            side = Side(name, command, folder / f"{number}.log", THREADS)
            stack.callback(side.close)
            side.wait_until_ready()
            sides.append(side)
        for side in sides:
            side.run(WARM_UP_STEPS)
        load = OtherLoad(sides)
        blocks: dict[str, list[Block]] = {side.name: [] for side in sides}
        for number in range(1, rounds + 1):
            for side in sides:
                blocks[side.name].append(side.run(steps))
            latest = "; ".join(f"{name} {1e3 * each[-1].seconds:.0f}" for name, each in blocks.items())
            progress.print(f"round {number} of {rounds}, ms a step: {latest}", highlight=False)
        busy = load.cores()
        for side in sides:
            if round(side.facts["tokens"]) != TOKENS_A_STEP:
                raise SideError(f"{side.name} sampled {side.facts['tokens']:g} tokens a step, not {TOKENS_A_STEP}")
        return {side.name: Measured(blocks[side.name], side.versions, side.facts) for side in sides}, busy


class OtherLoad:
    """Processor time that the machine spends on anything but the sides, from now on."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        self._started, self._all, self._own = time.perf_counter(), _busy_seconds(), self._used()

    def cores(self) -> float:
        other = (_busy_seconds() - self._all) - (self._used() - self._own)
        return max(0.0, other) / (time.perf_counter() - self._started)

    def _used(self) -> float:
        return sum(side.cpu_seconds() for side in self._sides)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


if __name__ == "__main__":
    typer.run(main)
