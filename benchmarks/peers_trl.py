"""TRL's side, in TRL's own environment: GRPOTrainer with transformers' generate, held between two steps by a callback.

The hyper-parameters are those of the recipe peers.yaml; what is not named here has the same value by default.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from benchmarks.gate import Gate
from benchmarks.peers_task import even_share, prompts

PROMPTS, COMPLETIONS, TOKENS = 8, 8, 64
PACKAGES = ("trl", "accelerate", "torch", "transformers")


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Measures its parts from outside: nothing is done differently."""

    def __init__(self, gate: Gate, **arguments: Any) -> None:
        self.gate = gate
        self.prepared_at = 0.0
        super().__init__(**arguments)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = super()._generate_single_turn(*args, **kwargs)
        self.gate.add("generation", time.perf_counter() - started)
        return result

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = super()._calculate_rewards(*args, **kwargs)
        self.gate.add("rewards", time.perf_counter() - started)
        return result

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._prepare_inputs(*args, **kwargs)
        self.prepared_at = time.perf_counter()
        return result


class Held(TrainerCallback):
    """Stops at the gate right after the optimizer's step; logging follows and belongs to the next, as on our side."""

    def __init__(self, gate: Gate, completions: int = PROMPTS * COMPLETIONS) -> None:
        self.gate = gate
        self.completions = completions  # of a step
        self.trainer: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.gate.enter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.trainer is not None:
            self.gate.add("training", time.perf_counter() - self.trainer.prepared_at)
        self.gate.enter()

    def on_log(self, *_: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        self.gate.note(reward=logs["reward"], tokens=logs["completions/mean_length"] * self.completions)


def reward(completions: list[str], **_: Any) -> list[float]:
    return [even_share(completion) for completion in completions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--output-directory", required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    gate = Gate(options.channel)
    held = Held(gate)
    held.trainer = TimedTrainer(
        gate,
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        reward_funcs=reward,
        args=settings(options.output_directory),
        train_dataset=Dataset.from_dict({"prompt": prompts()}),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        callbacks=[held],
    )
    gate.ready(PACKAGES)
    held.trainer.train()


def settings(output_directory: str) -> GRPOConfig:
    return GRPOConfig(
        output_dir=output_directory, max_steps=1_000_000, per_device_train_batch_size=PROMPTS * COMPLETIONS,
        num_generations=COMPLETIONS, max_completion_length=TOKENS, generation_kwargs={"min_new_tokens": TOKENS},
        temperature=1.0, learning_rate=1e-3, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
        beta=0.0, epsilon=0.2, loss_type="grpo", scale_rewards="group", num_iterations=1, use_cpu=True, bf16=False,
        gradient_checkpointing=False, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
