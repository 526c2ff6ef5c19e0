"""TRL's side on a GPU: GRPOTrainer with colocated vLLM, held between two steps by a callback."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from benchmarks.gate import Gate
from benchmarks.peers_task import prompts
from benchmarks.peers_trl import Held, reward

PROMPTS, COMPLETIONS, TOKENS, MICRO_BATCH = 16, 16, 512, 16
PACKAGES = ("trl", "torch", "transformers", "vllm")


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Measures its parts from outside, from an idle GPU to an idle GPU."""

    def __init__(self, gate: Gate, **arguments: Any) -> None:
        self.gate = gate
        self.prepared_step, self.prepared_at = -1, 0.0
        super().__init__(**arguments)
        self._time(self.vllm_generation, "generate", "generation")
        self._time(self.vllm_generation, "sync_weights", "refit")

    def _time(self, owner: Any, method: str, part: str) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            torch.cuda.synchronize()
            started = time.perf_counter()
            result = inner(*args, **kwargs)
            torch.cuda.synchronize()
            self.gate.add(part, time.perf_counter() - started)
            return result

        setattr(owner, method, timed)

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._prepare_inputs(*args, **kwargs)
        if self.state.global_step != self.prepared_step:  # the first of its micro-batches, which generates for all
            self.prepared_step, self.prepared_at = self.state.global_step, time.perf_counter()
        return result


class HeldOnGpu(Held):
    """A step is over when the GPU has done it."""

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        torch.cuda.synchronize()
        super().on_step_end(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output-directory", required=True)
    parser.add_argument("--memory", type=float, required=True, help="share of the GPU for vLLM")
    options = parser.parse_args()
    gate = Gate(options.channel)
    gate.wait()
    held = HeldOnGpu(gate, PROMPTS * COMPLETIONS)
    held.trainer = TimedTrainer(
        gate,
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        reward_funcs=reward,
        args=settings(options.output_directory, options.memory),
        train_dataset=Dataset.from_dict({"prompt": prompts()}),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        callbacks=[held],
    )
    gate.ready(PACKAGES)
    held.trainer.train()


def settings(output_directory: str, memory: float) -> GRPOConfig:
    return GRPOConfig(
        output_dir=output_directory, max_steps=1_000_000, per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=PROMPTS * COMPLETIONS // MICRO_BATCH, num_generations=COMPLETIONS,
        max_completion_length=TOKENS, learning_rate=1e-6, beta=0.0, temperature=1.0, loss_type="grpo",
        logging_steps=1, report_to=[], save_strategy="no", bf16=True, gradient_checkpointing=False, seed=0,
        disable_tqdm=True, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=memory,
        vllm_importance_sampling_correction=True, generation_kwargs={"min_tokens": TOKENS, "ignore_eos": True},
    )  # fmt: skip


if __name__ == "__main__":
    main()
