"""Asynchronous rollouts over any number of lives of a run, each of which ends anywhere, through real checkpoints."""

import random

import pytest

from grpo.checkpoint.manager import CheckpointManager
from grpo.config.schema import Grpo
from grpo.data.loader import PromptLoader
from grpo.rollout.replay.source import ReplaySource
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import SamplingParams
from tests.support.replay import LIMIT, HandDrivenEngine
from tests.support.rollouts import ChosenScorer, prompt

PROMPTS, EPOCHS, GROUPS = 7, 3, 2


class RandomEngine(HandDrivenEngine):
    """Finishes some of what it has, whenever it is asked, in any order."""

    def __init__(self, chance):
        super().__init__()
        self._chance = chance

    def finished(self, wait_s):
        with self._changed:
            running = sorted(self._running)
            self.finish(*self._chance.sample(running, self._chance.randint(min(1, len(running)), len(running))))
        return super().finished(wait_s)


class Lives:
    """A run that trains, saves, is stopped in a rollout or killed, and begins again from its last checkpoint."""

    def __init__(self, folder, chance, *, dynamic_sampling):
        self.manager = CheckpointManager(
            folder, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
        )
        self.chance = chance
        self.grpo = Grpo(
            num_prompts_per_step=GROUPS, num_generations_per_prompt=2, use_dynamic_sampling=dynamic_sampling,
            dynamic_sampling_max_gen_batches=99,
        )  # fmt: skip
        self.trained, self.lives = [], 0
        self.dropped = {number for number in range(PROMPTS) if dynamic_sampling and number % 3 == 0}

    def begin(self):
        self.engine = RandomEngine(self.chance)
        loader = PromptLoader([prompt(n) for n in range(PROMPTS)], seed=1, shuffle=True, max_epochs=EPOCHS)
        source = ReplaySource(
            loader, self.engine, self, SamplingParams(max_new_tokens=4), self.grpo, updates_per_step=1,
            deadline_s=LIMIT,
        )  # fmt: skip
        self.trained, self.lives = [], self.lives + 1
        if (loaded := self.manager.load_latest().loaded) is not None:
            self.trained = list(loaded.values["trained"])
            self.engine.weight_version = loaded.step
            source.load_state(loaded.tensors, loaded.values["source"])
        self.step = self.engine.weight_version
        return source

    def score(self, prompts, completions, group_ids):
        """Groups of some prompts teach nothing; a collector asks this in its thread."""
        teaches = {
            group: each.record["number"] not in self.dropped for group, each in zip(group_ids, prompts, strict=True)
        }
        scorer = ChosenScorer(lambda group, place: float(place) if teaches[group] else 1.0)
        return scorer.score(prompts, completions, group_ids)

    def save(self, source):
        tensors, values = source.state()
        self.manager.save(self.step, tensors, {"source": values, "trained": self.trained}, {})

    def live(self):
        """Whether the prompts are used up."""
        source = self.begin()
        try:
            for _ in range(self.chance.randrange(5)):
                source.begin()
                rollout = self.draw(source)
                if rollout is None:
                    return True
                if self.chance.random() < 0.2:  # a stop: the rollout is undone, and what is saved is from before it
                    source.go_back()
                    self.save(source)
                    return False
                self.step += 1
                self.engine.weight_version = self.step
                self.trained += [each.prompt.record["number"] for each in rollout.trajectories[::2]]
                if self.chance.random() < 0.6:
                    self.save(source)
            return False  # killed, with what was not saved
        finally:
            source.close()

    @staticmethod
    def draw(source):
        timer = PhaseTimer()
        with timer.step():
            return source.next_rollout(timer)


@pytest.mark.parametrize("dynamic_sampling", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_every_prompt_is_trained_once_an_epoch_over_any_number_of_interruptions(tmp_path, seed, dynamic_sampling):
    lives = Lives(tmp_path / "checkpoints", random.Random(seed), dynamic_sampling=dynamic_sampling)
    while not lives.live():
        assert lives.lives < 300
    wanted = [number for number in range(PROMPTS) if number not in lives.dropped] * EPOCHS
    assert sorted(lives.trained) == sorted(wanted)
    assert lives.lives > 1
