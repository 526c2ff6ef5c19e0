"""What the comparison with peers found, as a table for the terminal and as a page."""

from __future__ import annotations

import datetime as dt
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.paired import Block, Spread, part, ratios

PEER = "TRL"
AIM, LIMIT = 0.5, 0.7
PARTS = ("generation", "training")
DETAILS = ("rewards", "refit")  # of the rest
HEADER = ["", "step, ms", *PARTS, "rest", "step", *PARTS]
METHOD = """
A step is 8 prompts x 8 completions x 64 pinned tokens (the end of sequence cannot be sampled before) on a Llama of two
layers and width 128 with random weights (shape `tiny-llama`, the same folder for all), float32, 2 threads, one AdamW
update (1e-3) on all 64 completions, no KL term, temperature 1. `benchmarks/peers.yaml` is our recipe,
`benchmarks/peers_trl.py` has TRL's settings.

- Each side is a process of its own that is started once. In each round each of them takes the same number of steps
  while the others wait; a ratio is of one round, so that what slows the machine slows both. Five steps of each before
  the first round are not counted.
- The times are each side's own clock around whole steps: prompts, sampling, rewards, advantages, update, and what a
  step logs. Both write their metrics every step (ours to metrics.jsonl, TRL's to its history and standard output);
  TensorBoard, checkpoints and progress bars are off.
- Ours is the real loop (`Trainer` on the parts that `grpo train` assembles); its times are the `timing/*` metrics.
  TRL's generation is `GRPOTrainer._generate_single_turn` (transformers' `generate`, to lists of token ids); its
  training lasts from the end of `_prepare_inputs` to the callback after the optimizer's step. `rest` is all else.
- One update a sampled batch on both sides. TRL skips the old log-probs where no update lies between sampling and
  training (`num_iterations=1`) and puts the detached log-probs in their place; `force_on_policy_ratio: true` is that.
- The reward is the share of characters with an even code point. TRL calls the function in its own process; ours runs
  it as any user's verifier, in a pool of two processes with a time limit, which costs ours what `rewards` says.
- Ours returns the log-prob of each sampled token and compares it with the trainer's; TRL without vLLM has none. TRL
  logs the entropy of each step; ours computes it where the loss has an entropy term.
"""


@dataclass(frozen=True)
class Measured:
    """All rounds of one side."""

    blocks: list[Block]
    versions: Mapping[str, str]
    facts: Mapping[str, float]

    @property
    def steps(self) -> list[float]:
        return [block.seconds for block in self.blocks]


@dataclass(frozen=True)
class Machine:
    """Where it was measured, and what else ran there."""

    cpu: str
    cores: int
    busy_cores: float  # that other processes kept busy, on average

    @property
    def text(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, Python {platform.python_version()}; other processes kept "
            f"{self.busy_cores:.2f} cores busy"
        )


def cpu_model() -> str:
    """As the kernel names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def row(measured: Measured, peer: Measured | None) -> list[str]:
    """Milliseconds of whole step, generation, training, rest; then the ratios to the peer."""
    rest = [block.rest + sum(block.parts.get(name, 0.0) for name in DETAILS) for block in measured.blocks]
    columns = [measured.steps, *(part(measured.blocks, name) for name in PARTS), rest]
    cells = [f"{1e3 * Spread.of(values).median:.0f}" for values in columns]
    if peer is None:
        return [*cells, *("1" for _ in ("step", *PARTS))]
    step = whole_step(measured, peer)
    parts = [ratios(part(measured.blocks, name), part(peer.blocks, name)).median for name in PARTS]
    return [*cells, f"{step.median:.2f} ({step.low:.2f}-{step.high:.2f})", *(f"{each:.2f}" for each in parts)]


def whole_step(measured: Measured, peer: Measured) -> Spread:
    return ratios(measured.steps, peer.steps)


def table(sides: Mapping[str, Measured]) -> Table:
    shown = Table(title=f"A whole GRPO step, and its ratio to {PEER}'s: median (least-greatest) of the rounds")
    for index, name in enumerate(HEADER):
        shown.add_column(name, justify="right" if index else "left", no_wrap=True)
    for name, measured in sides.items():
        shown.add_row(name, *row(measured, None if name == PEER else sides[PEER]))
    return shown


def details(name: str, measured: Measured) -> str:
    """What the rest of a step is made of, and that the work was done."""
    parts = ", ".join(f"{each} {1e3 * Spread.of(part(measured.blocks, each)).median:.1f} ms" for each in DETAILS)
    tokens, reward = measured.facts["tokens"], measured.facts["reward"]
    return f"{name}: {tokens:.0f} tokens a step, reward {reward:.2f} in the last one; of the rest {parts}"


def verdict(name: str, measured: Measured, peer: Measured) -> tuple[bool, str]:
    """Whether a side's whole step keeps the limit, in words."""
    median = whole_step(measured, peer).median
    word = "reached" if median <= AIM else "within the limit" if median <= LIMIT else "missed"
    return median <= LIMIT, f"{name}: {median:.2f} of {PEER}'s step (aim {AIM}, limit {LIMIT}): {word}"


def markdown(
    sides: Mapping[str, Measured], machine: Machine, *, command: Sequence[str], rounds: int, steps: int
) -> str:
    """The page docs/measurements/peers.md."""
    versions = {name: each for measured in sides.values() for name, each in measured.versions.items()}
    first = 2 + len(PARTS) + 1
    rows = [HEADER[:first] + [f"{name} / {PEER}" for name in HEADER[first:]], ["---", *("---:" for _ in HEADER[1:])]]
    rows += [[name, *row(each, None if name == PEER else sides[PEER])] for name, each in sides.items()]
    return "\n".join((
        f"# A whole step against {PEER}", "",
        f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}; {machine.text}.", "",
        f"Versions: {', '.join(f'{name} {each}' for name, each in sorted(versions.items()))}.", "",
        f"Command: `{shlex.join(command)}` ({rounds} rounds of {steps} steps).", "",
        *(f"| {' | '.join(cells)} |" for cells in rows), "",
        "Milliseconds are medians over the rounds; a ratio is the median of the rounds' ratios (least-greatest).", "",
        *(f"- {details(name, each)}" for name, each in sides.items()), "",
        "## How it is measured", METHOD.rstrip(), "",
    ))  # fmt: skip
