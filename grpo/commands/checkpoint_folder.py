"""What the user names to `grpo checkpoint`: a run directory, or the folder of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo.checkpoint.layout import step_folders
from grpo.checkpoint.reading import CheckpointInfo, list_checkpoints
from grpo.config.schema.run import Checkpointing
from grpo.errors import CheckpointError
from grpo.telemetry.reader import read_config


@dataclass(frozen=True)
class CheckpointFolder:
    """`config` is the run's, as far as it can be found beside the checkpoints: plain values, perhaps none."""

    directory: Path
    config: dict[str, Any]

    @property
    def settings(self) -> Checkpointing:
        """The run's `checkpointing` section; the defaults where its configuration is not known."""
        try:
            return Checkpointing.model_validate(self.config.get("checkpointing", {}))
        except ValidationError as error:
            first = error.errors()[0]
            raise CheckpointError(
                f"config.yaml of {self.directory}: checkpointing.{'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from error

    def checkpoint(self, step: str) -> CheckpointInfo:
        """The one of a step, or the newest sound one for "latest". Raises CheckpointError listing those there are."""
        infos = list_checkpoints(self.directory)
        if step == "latest":
            found = [info for info in infos if info.problem is None]
        else:
            found = [info for info in infos if str(info.step) == step]
        if not found:
            there = ", ".join(str(info.step) for info in sorted(infos, key=lambda info: info.step)) or "none"
            raise CheckpointError(f"{self.directory} holds no checkpoint of step {step}; there are: {there}")
        return found[-1]


def find_folder(path: Path) -> CheckpointFolder:
    """Raises CheckpointError naming the path if it is neither a run directory nor a folder of checkpoints."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no folder; name a run directory, or its folder of checkpoints")
    if (path / "manifest.json").is_file() and (path / "config.yaml").is_file():
        config = read_config(path)
        if (path / "checkpoints").is_dir():
            return CheckpointFolder(path / "checkpoints", config)  # also where the run was moved since
        named = config.get("checkpointing", {}).get("checkpoint_dir")
        if named is not None and Path(named).is_dir():
            return CheckpointFolder(Path(named), config)
        raise CheckpointError(f"{path} is a run without checkpoints (they would be in {named or path / 'checkpoints'})")
    if not any(step_folders(path)):
        raise CheckpointError(f"{path} is neither a run directory nor a folder of checkpoints: it holds no step_N")
    beside = path.resolve().parent
    return CheckpointFolder(path, read_config(beside) if (beside / "manifest.json").is_file() else {})
