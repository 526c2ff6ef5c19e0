"""Stand-ins for asynchronous rollouts: groups by hand, and an engine whose every answer the test gives."""

import os
import signal
import threading
from collections.abc import Sequence

from grpo.rollout.replay.buffer import Group
from grpo.rollout.trajectory import Trajectory
from grpo.workers.generation.engine_rank import StreamRank
from grpo.workers.protocol import Completion, Finished, GroupRequest, SamplingParams
from tests.support.rollouts import RecordingGenerator, prompt

LIMIT = 20.0  # seconds; far beyond what anything here takes


def group(position: int, versions: Sequence[int] = (0, 0), *, rewards: Sequence[float | None] = (0.0, 1.0)) -> Group:
    """One group; `versions` and `rewards` of its completions."""
    return Group(
        position,
        tuple(
            Trajectory(
                position, prompt(position), Completion([3, 1], [-0.5, -1.0], "stop", version), "t", reward, reward
            )
            for version, reward in zip(versions, rewards, strict=True)
        ),
    )


class HandDrivenEngine(RecordingGenerator):
    """A `StreamingGenerator`: takes requests, and finishes those that `finish` names."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_version = 0
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._running: dict[int, tuple[GroupRequest, int]] = {}
        self._done: list[tuple[int, list[Completion]]] = []
        self.submitted: list[int] = []
        self.seeds: dict[int, int] = {}

    def submit(self, requests: Sequence[GroupRequest], num_completions: int, _sampling: SamplingParams) -> None:
        with self._changed:
            for request in requests:
                assert request.key not in self._running
                self._running[request.key] = (request, num_completions)
                self.submitted.append(request.key)
                self.seeds[request.key] = request.seed
            self._changed.notify_all()

    def finished(self, wait_s: float) -> Finished:
        with self._changed:
            self._changed.wait_for(lambda: self._done or self.failure, wait_s)
            if self.failure is not None:
                raise self.failure
            done, self._done = self._done, []
            return Finished(done, busy_s=0.5 * len(done))

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def finish(self, *keys: int, version: int | None = None, reason: str = "stop") -> None:
        """Give all completions of these requests, waiting for the requests to be there."""
        with self._changed:
            for key in keys:
                assert self._changed.wait_for(lambda key=key: key in self._running, LIMIT), f"{key} was not submitted"
                _, count = self._running.pop(key)
                made = self.weight_version if version is None else version
                self._done.append((key, [Completion([3, 1], [-0.5, -1.0], reason, made) for _ in range(count)]))
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[int]:
        """The first `count` requests, once they are there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.submitted) >= count, LIMIT), self.submitted
            return self.submitted[:count]


class DyingRank(StreamRank):
    """The process of an engine that is killed at the fifth question for what has finished."""

    asked = 0

    def finished(self, owner: str, wait_s: float) -> Finished:
        self.asked += 1
        if self.asked == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().finished(owner, wait_s)
