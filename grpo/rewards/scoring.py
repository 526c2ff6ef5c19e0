"""Scores for the samples of a step, over all envs."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, Self

from grpo.errors import RewardError
from grpo.rewards.outcome import Kind, Outcome, outcome_of
from grpo.rewards.pool import START_TIMEOUT_S, VerifierPool
from grpo.rewards.request import RewardRequest, Score
from grpo.rewards.verifiers import COIN, check_name, load_verifier
from grpo.rewards.verifiers.coin import coin_verifier

if TYPE_CHECKING:
    from grpo.config.schema.data import Env

# Trusted, constant-time code that needs no process.
IN_PROCESS = frozenset({"exact_match", COIN})

_log = logging.getLogger(__name__)


class _Scorer(Protocol):
    def wait_until_ready(self) -> None: ...
    def score(self, requests: Sequence[RewardRequest]) -> list[Outcome]: ...
    def close(self) -> None: ...


class _InProcess:
    def __init__(self, verifier: str, kwargs: Mapping[str, object]) -> None:
        self._verify = load_verifier(verifier, kwargs)

    def wait_until_ready(self) -> None:
        return

    def score(self, requests: Sequence[RewardRequest]) -> list[Outcome]:
        return [self._score(request) for request in requests]

    def _score(self, request: RewardRequest) -> Outcome:
        try:
            value = self._verify(
                prompt=request.prompt, completion=request.completion, answer=request.answer, record=request.record
            )
        except ValueError as error:
            return Outcome(Kind.ERROR, message=f"raised {type(error).__name__}: {error}")
        return outcome_of(value)

    def close(self) -> None:
        return


class _Coin:
    """Scores by the samples' ids."""

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        try:
            self._toss = coin_verifier(**kwargs)
        except TypeError as error:
            raise RewardError(f"verifier {COIN!r}, kwargs {dict(kwargs)!r}: {error}") from error

    def wait_until_ready(self) -> None:
        return

    def score(self, requests: Sequence[RewardRequest]) -> list[Outcome]:
        return [outcome_of(self._toss(request.sample_id)) for request in requests]

    def close(self) -> None:
        return


class Rewards:
    """The verifiers of a run by env name, with their pools of processes.

    Raises RewardError for a verifier that cannot be loaded, before anything else starts. With `wait=False` the pools
    start in the background, beside the loading of the model, and `wait_until_ready` (or the first `score`) raises.
    Close it, or use it as a context manager. `counts` holds how many samples ended without a reward, by kind: timeout,
    crash, error, invalid, memory.
    """

    def __init__(self, envs: Mapping[str, Env], *, wait: bool = True, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self.counts: dict[str, int] = {kind.name.lower(): 0 for kind in Kind if kind is not Kind.SCORED}
        self._counts_by_env: dict[str, Counter[Kind]] = defaultdict(Counter)
        for name, env in envs.items():
            try:
                check_name(env.verifier)
            except RewardError as error:
                raise RewardError(f"env.{name}: {error}") from error
        self._scorers: dict[str, _Scorer] = {}
        try:
            for name, env in envs.items():
                self._scorers[name] = _scorer(name, env, start_timeout_s)
            if wait:
                self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Return when every verifier is loaded and checked. Raises RewardError."""
        for scorer in self._scorers.values():
            scorer.wait_until_ready()

    def score(self, requests: Sequence[tuple[str, RewardRequest]]) -> list[Score]:
        """Score (env name, request) pairs; the result has their order. Envs are scored side by side.

        A sample whose verifier fails has no value and a reason, and is counted; it changes no other. Raises RewardError
        for an unknown env name, or a pool that cannot be kept running.
        """
        places: dict[str, list[int]] = defaultdict(list)
        for place, (name, _) in enumerate(requests):
            places[name].append(place)
        if unknown := sorted(places.keys() - self._scorers.keys()):
            raise RewardError(f"no env named {', '.join(unknown)}; env has: {', '.join(self._scorers)}")

        def score_env(name: str) -> list[Outcome]:
            return self._scorers[name].score([requests[place][1] for place in places[name]])

        if len(places) > 1:
            with ThreadPoolExecutor(len(places)) as threads:
                by_env = dict(zip(places, threads.map(score_env, places), strict=True))
        else:
            by_env = {name: score_env(name) for name in places}

        scores: list[Score | None] = [None] * len(requests)
        for name, outcomes in by_env.items():
            for place, outcome in zip(places[name], outcomes, strict=True):
                scored = outcome.kind is Kind.SCORED
                scores[place] = Score(outcome.value if scored else None, None if scored else outcome.message)
            self._count(name, [requests[place][1].sample_id for place in places[name]], outcomes)
        return [score for score in scores if score is not None]

    def _count(self, name: str, sample_ids: Sequence[str], outcomes: Sequence[Outcome]) -> None:
        """Count failures; warn of a kind each time its number has doubled, so that a long run's log stays short."""
        totals = self._counts_by_env[name]
        latest = {
            outcome.kind: (sample_id, outcome.message)
            for sample_id, outcome in zip(sample_ids, outcomes, strict=True)
            if outcome.kind is not Kind.SCORED
        }
        new = Counter(outcome.kind for outcome in outcomes if outcome.kind is not Kind.SCORED)
        for kind, count in new.items():
            before = totals[kind]
            totals[kind] += count
            self.counts[kind.name.lower()] += count
            if before.bit_length() < totals[kind].bit_length():
                _log.warning(
                    "env %s: %d samples without a reward so far (%s); the latest, %s: %s",
                    name, totals[kind], kind.name.lower(), *latest[kind],
                )  # fmt: skip

    def close(self) -> None:
        """End all processes, within a deadline. Again is harmless."""
        for scorer in self._scorers.values():
            scorer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scorer(name: str, env: Env, start_timeout_s: float) -> _Scorer:
    if env.verifier in IN_PROCESS:
        try:
            return _Coin(env.kwargs) if env.verifier == COIN else _InProcess(env.verifier, env.kwargs)
        except RewardError as error:
            raise RewardError(f"env.{name}: {error}") from error
    return VerifierPool(
        name,
        env.verifier,
        env.kwargs,
        num_workers=env.num_workers,
        timeout_s=env.timeout_s,
        memory_limit_mb=env.memory_limit_mb,
        start_timeout_s=start_timeout_s,
    )
