"""What the trainer asks of its workers. Implementations know nothing of Ray, of the loop or of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from grpo.batching.batch import Batch
from grpo.checkpoint.pieces import Piece
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.refit.manifest import Weight
from grpo.refit.writing import Places


@dataclass(frozen=True)
class Replay:
    """Completion lengths that are drawn instead of being sampled; see `grpo.workers.generation.replay`."""

    lengths: tuple[int, ...]  # the distribution, ascending: its quantiles
    context: int  # tokens of prompt and completion together, at which a completion is cut


@dataclass(frozen=True)
class SamplingParams:
    """How completions are sampled. Log-probs returned are of exactly this distribution."""

    max_new_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int | None = None
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()  # the tokenizer's end of sequence among them
    stop_strings: tuple[str, ...] = ()
    replay: Replay | None = None  # then nothing that is sampled ends a completion


FinishReason = Literal["stop", "length"]
# Where an engine's first weights come from: an engine that waits for a refit starts without, and samples only after it.
WeightsFrom = Literal["folder", "refit"]


@dataclass(frozen=True)
class Completion:
    """What an engine sampled for one request. `token_ids` includes the end-of-sequence token when it was sampled."""

    token_ids: list[int]
    logprobs: list[float]  # of the distribution that was sampled from, one a token
    finish_reason: FinishReason
    weight_version: int  # of the first token, which is the oldest
    newer_from: tuple[tuple[int, int], ...] = ()  # (token, version): from that token on, after an update in mid-flight

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens but {len(self.logprobs)} log-probs: the engine lost some")
        starts = [0, *(token for token, _ in self.newer_from)]
        versions = [self.weight_version, *(version for _, version in self.newer_from)]
        if starts != sorted(starts) or versions != sorted(versions):
            raise ValueError(f"versions of the weights go back: {self.weight_version}, then {self.newer_from}")

    @property
    def token_versions(self) -> list[int]:
        """The version of the weights that each token was sampled with."""
        versions = [self.weight_version] * len(self.token_ids)
        for token, version in self.newer_from:
            versions[token:] = [version] * (len(self.token_ids) - token)
        return versions


@dataclass(frozen=True)
class UpdateResult:
    """One optimizer update. `metrics` are final values over the global batch, by the names of `grpo.algorithm`."""

    metrics: Mapping[str, float]
    trained_tokens: int


@dataclass(frozen=True)
class GroupRequest:
    """One prompt whose completions are wanted; `key` names it in what comes back."""

    key: int
    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Finished:
    """Requests whose completions are all there, since asked last, and what the engine did meanwhile."""

    groups: list[tuple[int, list[Completion]]]  # key, completions
    busy_s: float  # seconds in which it sampled


class Policy(Protocol):
    """The trained model with its optimizer and, where a KL term asks for one, its reference."""

    weight_version: int  # updates done; names the current weights

    def logprobs(self, batch: Batch) -> Tensor:
        """[T] float32 on the CPU: log-probs of the tokens under the current weights, 0 where the mask is false."""
        ...

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """The same under the reference policy."""
        ...

    def train(self, batch: Batch) -> UpdateResult:
        """One forward, backward and optimizer update on the whole batch, cut into micro-batches."""
        ...

    def step_metrics(self) -> dict[str, float]:
        """What the policy measured itself since it was asked last, by the metrics' names."""
        ...

    def residences(self) -> Mapping[Resource, Residence]:
        """Where each resource is. This, `move` and `release` are for placement alone: see `MovablePolicy`."""
        ...

    def move(self, resource: Resource, residence: Residence) -> int:
        """Move one; the bytes that were copied."""
        ...

    def release(self) -> Mapping[str, float]:
        """Give freed memory back to the driver; what is held then, in GiB."""
        ...


class StatefulPolicy(Policy, Protocol):
    """One rank of a policy, in the process where it lives."""

    def describe_weights(self) -> list[Weight]:
        """What `export_weights` gives, in its order, without making it."""
        ...

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights under Hugging Face names, one at a time, tied ones once."""
        ...

    def write_weights(self, buckets: Iterable[Places]) -> Iterator[None]:
        """The same into memory that is given: all weights in their order, on every rank.

        At each step one more bucket is full, as far as the current stream goes. The next may be asked for before that.
        """
        ...

    def state(self) -> tuple[list[Piece], dict[str, Any]]:
        """All that a resume needs: this rank's pieces of tensors (weights, optimizer), and JSON values of the whole.

        Over all ranks every element of a tensor is in one piece. The pieces are the live tensors.
        """
        ...

    def load_state(self, tensors: Mapping[str, Any], values: Mapping[str, Any], *, optimizer: bool = True) -> None:
        """Take back what all ranks' `state` gave: by name whole tensors, or what is read when it is sliced.

        Without `optimizer` the weights and the schedule alone.
        """
        ...


class Generator(Protocol):
    """The engine that samples."""

    weight_version: int

    def generate(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        """Sample `num_completions` for each prompt, from one seed a prompt. Same seed and weights: same tokens."""
        ...

    def residences(self) -> Mapping[Resource, Residence]:
        """Where weights and KV cache are. This, `sleep` and `wake` are for placement alone: see `MovableEngine`."""
        ...

    def sleep(self, level: Literal[1, 2]) -> None:
        """Give up the KV cache, and the weights: to host memory (1), or altogether (2)."""
        ...

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """Take memory for them again. Weights that were given up have no values until they are updated."""
        ...

    def shutdown(self) -> None:
        """End every process and free every resource of the engine."""
        ...


class LocalGenerator(Generator, Protocol):
    """An engine, or a part of one, in the process where it lives."""

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights and drop cached prefixes. Raises if a name is missing, unknown or of another shape."""
        ...


class StreamingGenerator(Generator, Protocol):
    """An engine that samples while its caller goes on; `generate` and a refit may come in between."""

    def submit(self, requests: Sequence[GroupRequest], num_completions: int, sampling: SamplingParams) -> None:
        """Take requests and return at once."""
        ...

    def finished(self, wait_s: float) -> Finished:
        """What has finished, waiting up to `wait_s` for the first. Raises what the engine raised while it sampled."""
        ...
