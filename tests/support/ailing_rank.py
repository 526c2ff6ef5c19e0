"""An engine's rank that fails as the seed of a prompt says."""

import os
import signal
import threading
from collections.abc import Sequence

from grpo.workers.generation.engine_rank import EngineRank
from grpo.workers.generation.shares import Part
from grpo.workers.protocol import Completion, SamplingParams

RAISES, DIES, HANGS = 13, 17, 19


class AilingRank(EngineRank):
    """Of one rank an engine; it has no model."""

    def __init__(self, *_: object) -> None:
        """Loads nothing."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_completions: int,
        _sampling: SamplingParams,
        seeds: Sequence[int],
        parts: Sequence[Part],
    ) -> list[list[Completion]]:
        del prompts
        for part in parts:
            self._ail(seeds[part.prompt])
        return [[Completion([1], [-0.5], "stop", 0)] * num_completions for _ in parts]

    def shutdown(self) -> None:
        """Nothing to end."""

    def _ail(self, seed: int) -> None:
        if seed == RAISES:
            raise ZeroDivisionError("divided by nothing")
        if seed == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == HANGS:
            threading.Event().wait()
