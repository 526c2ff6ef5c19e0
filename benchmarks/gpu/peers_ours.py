"""Our side on a GPU: the real loop on step.yaml with vLLM, held between two steps."""

from __future__ import annotations

import argparse

from benchmarks.gate import Gate
from benchmarks.gpu.step import RECIPE
from benchmarks.peers_ours import run

PACKAGES = ("torch", "transformers", "vllm")
CACHE_BYTES = 10 << 30  # 256 sequences of 576 tokens take 4.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--run-directory", required=True)
    parser.add_argument("override", nargs="*", help="of the recipe")
    options = parser.parse_args()
    overrides = [
        f"policy.model_name={options.model}", "policy.random_weights=false", "policy.generation.backend=vllm",
        "policy.generation.min_new_tokens=512", "policy.generation.max_new_tokens=512",
        "policy.max_total_sequence_length=576",
        f"policy.generation.vllm_cfg.kv_cache_memory_bytes={CACHE_BYTES}",
        f"data.train.data_path={options.prompts}", f"logger.log_dir={options.run_directory}",
        "grpo.max_num_steps=1000000", "grpo.max_num_epochs=1000000", *options.override,
    ]  # fmt: skip
    run(Gate(options.channel), overrides, PACKAGES, RECIPE)


if __name__ == "__main__":
    main()
