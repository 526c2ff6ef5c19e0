"""Prompts, completions, trajectories, and stand-ins for an engine and a scorer whose every answer the test chooses."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from torch import Tensor

from grpo.data.prompt import Prompt
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.rollout.trajectory import Trajectory
from grpo.workers.offload.engine import EngineResidence
from grpo.workers.protocol import Completion, SamplingParams


def prompt(number: int, *, tokens: Sequence[int] = (5, 6, 7), answer: str | None = "a") -> Prompt:
    return Prompt(f"p{number}", f"text {number}", tuple(tokens), "env", answer, {"number": number})


def completion(tokens: Sequence[int] = (3, 1), *, reason: str = "stop", version: int = 0) -> Completion:
    return Completion(list(tokens), [-0.5 * (place + 1) for place in range(len(tokens))], reason, version)


def trajectory(
    group: int,
    reward: float | None,
    *,
    raw: float | None = None,
    prompt_tokens: Sequence[int] = (5, 6, 7),
    tokens: Sequence[int] = (3, 1),
    reason: str = "stop",
) -> Trajectory:
    raw = reward if raw is None else raw
    return Trajectory(
        group, prompt(group, tokens=prompt_tokens), completion(tokens, reason=reason), "text", raw, reward
    )


class RecordingGenerator:
    """Answers every prompt with the same completion, and remembers what it was asked."""

    def __init__(self, answer: Completion | None = None) -> None:
        self.answer = answer or completion()
        self.weight_version = -1
        self.calls: list[tuple[list[Sequence[int]], int, SamplingParams, list[int]]] = []
        self.received: list[tuple[int, dict[str, Tensor]]] = []
        self.shut_down = False
        self.residence = EngineResidence()

    def generate(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        self.calls.append((list(prompts), num_completions, sampling, list(seeds)))
        return [[self.answer] * num_completions for _ in prompts]

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        self.residence.updated()
        self.received.append((version, {name: tensor.clone() for name, tensor in weights}))
        self.weight_version = version

    def residences(self) -> dict[Resource, Residence]:
        return self.residence.residences()

    def sleep(self, level: Literal[1, 2]) -> None:
        self.residence.fell_asleep(level)

    def wake(self, tags: Sequence[EngineTag]) -> None:
        self.residence.woke(tags)

    def shutdown(self) -> None:
        self.shut_down = True


class ChosenScorer:
    """Scores the n-th completion of a group by `reward(group_id, n)`; None means no verdict."""

    def __init__(
        self, reward: Callable[[int, int], float | None], shaped: Callable[[int, int], float | None] | None = None
    ) -> None:
        self._reward = reward
        self._shaped = shaped or reward

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], group_ids: Sequence[int]
    ) -> list[Trajectory]:
        return [
            Trajectory(group, each, one, "text", self._reward(group, place), self._shaped(group, place))
            for group, each, several in zip(group_ids, prompts, completions, strict=True)
            for place, one in enumerate(several)
        ]
