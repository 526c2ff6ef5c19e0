"""A checkpoint of a small model as a run saves it, without the run."""

import json
from pathlib import Path

import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.models.loading import load_model, load_model_config
from tests.support.generation import Family, write_model


def save_model(root: Path, family: Family = "llama", *, tied: bool = False, **changes: object) -> tuple[Path, Path]:
    """The folder of the model, and the `step_3` that holds its weights with an optimizer's state."""
    folder = write_model(root / f"{family}-{tied}", family, tied=tied, **changes)
    model = load_model(folder, dtype=torch.float32)
    described = json.loads(load_model_config(folder).to_json_string(use_diff=False))
    described = {key: value for key, value in described.items() if key not in ("dtype", "_name_or_path")}
    manager = CheckpointManager(
        root / f"{family}-{tied}-checkpoints", keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True,
        fingerprint={"model": described},
        max_shard_bytes=100_000,
    )  # fmt: skip
    tensors = {f"policy/model.{name}": each.detach() for name, each in model.named_parameters()}
    tensors |= {
        f"policy/optimizer.{name}.exp_avg": torch.full_like(each, 9.0) for name, each in model.named_parameters()
    }
    tensors["rng/torch"] = torch.get_rng_state()
    return folder, manager.save(3, tensors, {"step": 3}, {}).path
