"""The bench of an asynchronous run: the real collector, replay buffer and engine loop, in their own threads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from grpo.config.schema import Config, Grpo
from grpo.data.loader import PromptLoader
from grpo.placement.placement import Placement
from grpo.placement.plan import plan_of
from grpo.refit.local import LocalRefit
from grpo.rollout.replay.source import ReplaySource
from grpo.rollout.source import Rollout
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.engine_loop import BatchEngine, EngineLoop
from grpo.workers.generation.engine_rank import StreamRank
from grpo.workers.generation.engine_start import Engines
from grpo.workers.generation.hf import HfGenerator
from grpo.workers.generation.stream_group import StreamGroup
from tests.support.ledger import GPU, Ledger
from tests.support.local_group import LocalGroup
from tests.support.placement_cells import SAMPLING, Bench
from tests.support.rollouts import ChosenScorer, prompt

UPDATES_PER_STEP = 2  # that a cell makes between two rollouts
LIMIT = 60.0
SETTINGS = Grpo(num_prompts_per_step=2, num_generations_per_prompt=2)


class WatchedEngine(BatchEngine):
    """An engine whose thread is under the ledger too."""

    _generator: HfGenerator

    def __init__(self, generator: HfGenerator, ledger: Ledger) -> None:
        super().__init__(generator)
        self._ledger = ledger.beside()

    def step(self) -> Any:
        with self._ledger:
            return super().step()

    def update_weights(self, weights: Any, version: int) -> None:
        with self._ledger:
            super().update_weights(weights, version)
        self._ledger.mark(self._generator._weights.blocks(), GPU)


class WatchedRank(StreamRank):
    """The rank of an engine, in this process."""

    def __init__(self, generator: HfGenerator, ledger: Ledger) -> None:
        self._answers = True
        self._loop = EngineLoop(lambda: WatchedEngine(generator, ledger), in_flight=False)


class NearStream(StreamGroup):
    """An engine that the policy of the same process sends its weights to; to another process a session brings them."""

    def __init__(self, rank: WatchedRank) -> None:
        super().__init__(Engines(LocalGroup(1, lambda _: rank), 1), timeout_s=LIMIT)
        self._rank = rank

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        self._rank._loop.update_weights([(name, tensor.clone()) for name, tensor in weights], version)
        self.updated(version)


class ReplayBench(Bench):
    """`generation` takes a step's groups from the replay buffer; the engine samples on meanwhile. Use as a context."""

    def __init__(self, config: Config, folder: Path, ledger: Ledger) -> None:
        super().__init__(config, folder, ledger)
        self.stream = NearStream(WatchedRank(self.engine, ledger))
        self.placement = Placement(plan_of(config), self.policy, self.stream)
        self.timer = PhaseTimer(entering=self.placement.enter)
        self.delivery = LocalRefit(self.policy, self.stream)
        self.source = source_of(self.stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
        self.stream.shutdown()

    def generation(self) -> Rollout:
        rollout = self.source.next_rollout(self.timer)
        assert rollout is not None
        assert len(rollout.trajectories) == 4
        assert rollout.metrics["rollout/age_steps_max"] <= 1
        return rollout

    def sample(self) -> Any:
        return self.generation()

    def source_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.source.state()


def source_of(stream: StreamGroup) -> ReplaySource:
    loader = PromptLoader([prompt(n) for n in range(4)], seed=1, shuffle=False, max_epochs=1000)
    return ReplaySource(
        loader, stream, ChosenScorer(lambda _group, place: float(place)), SAMPLING, SETTINGS,
        updates_per_step=UPDATES_PER_STEP, deadline_s=LIMIT,
    )  # fmt: skip
