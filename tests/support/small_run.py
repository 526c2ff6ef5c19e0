"""The `tiny` recipe, so small that a whole run takes about a second."""

from pathlib import Path

from grpo.checkpoint.signals import StopRequest
from grpo.config import ResolvedConfig, load_config
from grpo.trainer.run import FinishedRun, train

SMALL = (
    "grpo.num_prompts_per_step=3", "grpo.num_generations_per_prompt=4", "policy.train_global_batch_size=12",
    "policy.train_micro_batch_size=12", "policy.logprob_batch_size=12", "grpo.max_num_steps=6", "grpo.val_period=3",
    "grpo.max_val_samples=8", "checkpointing.save_period=2", "cluster.cpu_threads=1", "grpo.stop_at_reward=null",
    "grpo.val_at_end=false",
)  # fmt: skip


def small(directory: Path, *overrides: str, recipe: str = "tiny") -> ResolvedConfig:
    return load_config(recipe, [*SMALL, f"logger.log_dir={directory}", *overrides])


def run_small(directory: Path, *overrides: str, fresh: bool = False) -> FinishedRun:
    with StopRequest() as stop:
        return train(small(directory, *overrides), fresh=fresh, quiet=True, command=["grpo", "train"], stop=stop)
