"""What a finished step has to tell, kept until the next one can write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo.trainer.parts import Parts
from grpo.workers.policy.group import RankSeconds


class Publisher:
    """One line of metrics at a time: `hold` it, `publish` it inside the next step, so that its seconds are in a step's
    `other`.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._held: Mapping[str, float] | None = None
        self._ranks: RankSeconds | None = None
        self._lengths: Sequence[int] = ()

    def hold(self, metrics: Mapping[str, float]) -> None:
        """A line; one that is held already is replaced."""
        self._held = metrics

    def hold_step(self, metrics: Mapping[str, float], lengths: Sequence[int]) -> None:
        """The line of a step, with the seconds of its ranks and the tokens of each of its completions."""
        self.hold(metrics)
        self._ranks = None if self._parts.rank_seconds is None else self._parts.rank_seconds()
        self._lengths = lengths

    def publish(self, step: int) -> None:
        """Write what is held, if anything is."""
        if self._held is None:
            return
        metrics, self._held = self._held, None
        self._parts.run.write_metrics(step, metrics)
        if self._ranks is not None:
            self._parts.run.write_ranks(step, self._ranks.hosts, self._ranks.phases)
            self._ranks = None
        if self._lengths:
            self._parts.run.write_lengths(step, self._lengths)
            self._lengths = ()
        for observer in self._parts.observers:
            observer(step, metrics)
