"""A plausible run directory without training: for tests of what reads one."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from grpo.telemetry.run_directory import RunDirectory

CONFIG = """\
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  max_num_steps: {steps}
  seed: {seed}
policy:
  model_name: tiny-digits
  precision: float32
  max_total_sequence_length: 16
logger:
  log_dir: runs/synthetic
"""
VALIDATION_PERIOD = 10
CHECKPOINT_PERIOD = 25


def write_synthetic_run(
    directory: Path,
    *,
    steps: int = 60,
    seed: int = 0,
    outcome: Literal["completed", "stopped", "failed", "running"] = "completed",
    without: Sequence[str] = (),
    scale: float = 1.0,
) -> Path:
    """Write a run of `steps` steps whose metrics depend on `seed` alone, and return its directory.

    `without` leaves out every metric that starts with one of these; `scale` multiplies all seconds. With outcome
    "running" the manifest stays as of a run in progress, by this process.
    """
    rng = random.Random(seed)
    facts = {"recipe": "tiny", "model": "tiny-digits", "parameters": 214_016, "device": "cpu", "chance": 0.1875}
    facts |= {"max_steps": steps, "num_prompts_per_step": 32, "num_generations_per_prompt": 16}
    run = RunDirectory.open(
        directory,
        "new",
        name="synthetic",
        config_yaml=CONFIG.format(steps=steps, seed=seed),
        command=["grpo", "train", "tiny", f"grpo.seed={seed}"],
        facts=facts,
        environ={},
    )
    for step in range(1, steps + 1):
        values = synthetic_metrics(rng, step, scale)
        run.write_metrics(step, {k: v for k, v in values.items() if not k.startswith(tuple(without) or ("\0",))})
        _write_side_effects(run, step, values)
    if outcome == "running":
        run._close()
    else:
        reason = {"failed": "RuntimeError: the worker of rank 0 died", "stopped": "SIGTERM", "completed": None}[outcome]
        run.finish(outcome, reason=reason, exit_code={"completed": 0, "stopped": 85, "failed": 1}[outcome])
    return directory


def _write_side_effects(run: RunDirectory, step: int, values: dict[str, float]) -> None:
    if "validation/accuracy" in values:
        run.write_event("validation", step=step, accuracy=values["validation/accuracy"])
        run.write_sample(step, prompt="3,7,2,5=", completion="7", answer="7", reward=1.0)
    if step % CHECKPOINT_PERIOD == 0:
        run.write_event("checkpoint", step=step, path=f"checkpoints/step_{step}")


def synthetic_metrics(rng: random.Random, step: int, scale: float = 1.0) -> dict[str, Any]:
    """One step's metrics: phases sum to the total, reward and accuracy rise, the rest drifts."""
    noise = lambda spread: rng.gauss(0.0, spread)  # noqa: E731
    learned = 1 - 0.95 ** max(step - 3, 0)
    validates = step % VALIDATION_PERIOD == 0
    seconds = {
        "data": 0.001,
        "refit": 0.012,
        "generation": 0.11 + abs(noise(0.01)) + (0.4 if step == 1 else 0),
        "rewards": 0.004 + abs(noise(0.001)),
        "advantages": 0.001,
        "logprobs": 0.03 + abs(noise(0.002)),
        "policy_training": 0.12 + abs(noise(0.008)),
        "validation": 0.06 + abs(noise(0.004)) if validates else 0.0,
        "checkpoint": 0.05 if step % CHECKPOINT_PERIOD == 0 else 0.0,
    }
    seconds = {phase: value * scale for phase, value in seconds.items()}
    other = 0.002 * scale
    total = sum(seconds.values()) + other
    reward = min(max(0.15 + 0.8 * learned + noise(0.03), 0), 1)
    tokens = 512 * (9 + 1.9)
    error = 1 + abs(noise(2e-5))
    values = {
        "timing/total": total,
        **{f"timing/{phase}": value for phase, value in seconds.items()},
        "timing/refit/export": seconds["refit"] * 0.3,
        "timing/refit/transfer": seconds["refit"] * 0.5,
        "timing/other": other,
        "performance/tokens_per_second_per_gpu": tokens / total,
        "rollout/generated_tokens_per_sample": 1.5 + 0.4 * learned,
        "rollout/completion_length_max": 2.0,
        "rollout/completion_length_p95": 2.0,
        "rollout/truncated_fraction": max(0.4 * (1 - learned) + noise(0.02), 0),
        "rollout/prompt_tokens_per_sample": 9.0,
        "rollout/reward_failures": 0,
        "rollout/dropped_prompts": 0,
        "train/reward": reward,
        "train/loss": noise(0.02),
        "train/grad_norm": 0.9 - 0.5 * learned + abs(noise(0.1)),
        "train/kl": 0.04 * learned + abs(noise(0.002)),
        "train/approx_entropy": 2.2 - 1.9 * learned + noise(0.03),
        "train/token_mult_prob_error": error,
        "train/token_mult_prob_error_p99": error + abs(noise(1e-5)) + 5e-5,
        "train/token_mult_prob_error_max": error + abs(noise(5e-5)) + 2e-4,
        "train/logprob_difference": error - 1,
        "train/logprob_difference_p99": error - 1 + 5e-5,
        "train/logprob_difference_max": error - 1 + 2e-4,
        "train/gen_kl_error": abs(noise(1e-6)),
        "train/sampling_importance_ratio": 1 + noise(1e-5),
        "train/clipped_fraction": abs(noise(0.01)),
        "train/zero_std_fraction": min(0.1 + 0.7 * learned, 1),
        "train/learning_rate": 1e-3 * min(step / 10, 1),
        "memory/rss_gib": 0.62 + 0.0001 * step,
    }
    if validates:
        values["validation/accuracy"] = min(max(0.17 + 0.8 * learned + noise(0.01), 0), 1)
        values["validation/reward"] = values["validation/accuracy"]
        values["validation/mean_length"] = 1.9
    return values
