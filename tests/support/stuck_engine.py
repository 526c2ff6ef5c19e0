"""An engine in a process of its own that asks its run to stop, and then does not come back."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from grpo.config.schema import Config
from grpo.workers.generation.engine_rank import EngineRank
from grpo.workers.protocol import WeightsFrom

CALL = 3


class StuckEngine(EngineRank):
    """At its third call."""

    def __init__(self, config: Config, model_path: Path, weights_from: WeightsFrom = "folder") -> None:
        super().__init__(config, model_path, weights_from)
        self._run = Path(config.logger.log_dir)
        self._calls = 0

    def generate(self, *arguments: Any) -> Any:
        self._calls += 1
        if self._calls == CALL:
            os.kill(os.getpid(), signal.SIGUSR1)  # as a scheduler does that signals all processes
            os.kill(json.loads((self._run / "manifest.json").read_text())["process_id"], signal.SIGUSR1)
            time.sleep(3600)
        return super().generate(*arguments)
