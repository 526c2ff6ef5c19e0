"""The thread that keeps the engine busy while training runs, and scores what comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo.data.loader import PromptLoader
from grpo.errors import GenerationError
from grpo.rollout.replay.buffer import Group, ReplayBuffer
from grpo.rollout.scoring import GroupScorer
from grpo.rollout.seeds import sampling_seed
from grpo.rollout.trajectory import Trajectory
from grpo.workers.generation.replay import ended
from grpo.workers.protocol import GroupRequest, SamplingParams, StreamingGenerator

_POLL_SECONDS = 0.25  # how long one question to the engine lasts when nothing finishes
_IDLE_SECONDS = 5.0  # between looks when nothing runs; a change wakes it at once
_JOIN_SECONDS = 10.0


@dataclass(frozen=True)
class Counts:
    """What happened since it was asked last."""

    samples: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    given_up: int = 0
    busy_s: float = 0.0  # of the engine
    starved_s: float = 0.0  # in which it had nothing to sample

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.samples + other.samples, self.generated_tokens + other.generated_tokens,
            self.prompt_tokens + other.prompt_tokens, self.given_up + other.given_up, self.busy_s + other.busy_s,
            self.starved_s + other.starved_s,
        )  # fmt: skip


class Collector:
    """Draws prompts, has them sampled and scored, and puts complete groups into the buffer.

    Every failure of the thread, whatever it is, is raised in `take`; so is a silence of `deadline_s`. All of `buffer`
    and `loader` is used under one lock.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loader: PromptLoader,
        generator: StreamingGenerator,
        scorer: GroupScorer,
        sampling: SamplingParams,
        *,
        num_completions: int,
        seed: int,
        deadline_s: float,
        give_up: Callable[[Sequence[Trajectory]], bool],
    ) -> None:
        """`give_up` says of a scored group that it is not worth training (dynamic sampling); it may raise."""
        self._buffer = buffer
        self._loader = loader
        self._generator = generator
        self._scorer = scorer
        self._sampling = sampling
        self._num_completions = num_completions
        self._seed = seed
        self._deadline_s = deadline_s
        self._give_up = give_up
        self._changed = threading.Condition()
        self._counts = Counts()
        self._heard = False  # of a group or a failure, since the training thread last looked
        self._scoring: tuple[int, ...] = ()  # positions that the verifiers have
        self._failure: BaseException | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def lock(self) -> threading.Condition:
        """Held while buffer and loader are read together, as for a checkpoint."""
        return self._changed

    def start(self, version: int) -> None:
        """Begin to collect, with the engine at `version` of the policy's weights; a second time does nothing."""
        if self._thread is None:
            self._buffer.begin(version)
            self._thread = threading.Thread(target=self._run, name="rollout-collector", daemon=True)
            self._thread.start()

    def take(self, version: int) -> list[Group] | None:
        """One step's groups for training the weights `version`; None when the prompts are used up.

        Raises:
            GenerationError: nothing finished for `deadline_s`.
            Exception: whatever ended the thread.
        """
        with self._changed:
            self._buffer.set_version(version)
            self._changed.notify_all()
            while True:
                self._heard = False
                self._raise_failure()
                over = self._loader.remaining == 0 and self._buffer.complete
                groups = self._buffer.take(rest=over)
                if groups is not None or over:
                    return groups
                if not self._changed.wait_for(lambda: self._heard, self._deadline_s):
                    raise self._silence()

    def take_counts(self) -> Counts:
        """What was sampled since the last call."""
        with self._changed:
            counts, self._counts = self._counts, Counts()
            return counts

    def close(self) -> None:
        """End the thread; more than once does no harm. What runs in the engine is left to whoever ends the engine."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _silence(self) -> GenerationError:
        groups = self._scoring or self._buffer.running
        names = ", ".join(self._loader.at(position).prompt_id for position in groups[:4])
        return GenerationError(
            f"no group finished within {self._deadline_s:g} s (cluster.worker_timeout_s); "
            f"{'the verifiers still have' if self._scoring else 'the engine still has'} {len(groups)} groups: "
            f"prompts {names or 'none'}"
        )

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Submit what may be started and take what has finished; False at the end, or after a failure."""
        try:
            self._submit()
            if self._buffer.running:
                self._receive()
            else:
                with self._changed:
                    began = time.perf_counter()
                    self._changed.wait_for(self._has_work, _IDLE_SECONDS)
                    self._counts += Counts(starved_s=time.perf_counter() - began)
        except BaseException as error:  # noqa: BLE001 - raised in the training thread, by `take`
            with self._changed:
                self._failure, self._heard = error, True
                self._changed.notify_all()
            return False
        return not self._closing

    def _has_work(self) -> bool:
        return self._closing or bool(self._buffer.to_start(self._loader.remaining))

    def _submit(self) -> None:
        with self._changed:
            positions = self._buffer.to_start(self._loader.remaining)
            new = sum(position >= self._buffer.drawn for position in positions)
            again = [self._loader.at(position) for position in positions[: len(positions) - new]]
            prompts = [*again, *self._loader.take(new)]
            for position in positions:
                self._buffer.started(position)
        if not positions:
            return
        requests = [
            GroupRequest(position, tuple(prompt.token_ids), sampling_seed(self._seed, "train", position))
            for position, prompt in zip(positions, prompts, strict=True)
        ]
        self._generator.submit(requests, self._num_completions, self._sampling)

    def _receive(self) -> None:
        finished = self._generator.finished(_POLL_SECONDS)
        counts = Counts(busy_s=finished.busy_s)
        if finished.groups:
            positions = [position for position, _ in finished.groups]
            prompts = [self._loader.at(position) for position in positions]
            completions = ended(
                [prompt.token_ids for prompt in prompts], [each for _, each in finished.groups], self._sampling
            )
            self._scoring = tuple(positions)
            scored = self._scorer.score(prompts, completions, positions)
            self._scoring = ()
            counts += _sampled(scored)
            groups = [
                Group(position, tuple(scored[at : at + self._num_completions]))
                for position, at in zip(positions, range(0, len(scored), self._num_completions), strict=True)
            ]
        else:
            groups = []
        with self._changed:
            for group in groups:
                if self._give_up(group.trajectories):
                    self._buffer.give_up(group.position)
                    counts += Counts(given_up=1)
                else:
                    self._buffer.finished(group)
            self._counts += counts
            if groups:
                self._heard = True
                self._changed.notify_all()


def _sampled(trajectories: Sequence[Trajectory]) -> Counts:
    return Counts(
        samples=len(trajectories),
        generated_tokens=sum(len(each.completion.token_ids) for each in trajectories),
        prompt_tokens=sum(len(each.prompt.token_ids) for each in trajectories),
    )
