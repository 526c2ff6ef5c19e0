"""How much of what log-prob passes computed was padding."""

from __future__ import annotations

METRIC = "performance/logprob_padding_efficiency"


class PaddingTally:
    """Real tokens over computed ones, of all ranks, over the passes since it was asked last."""

    def __init__(self) -> None:
        self._real, self._computed = 0.0, 0.0

    def add(self, real_tokens: int, efficiency: float) -> None:
        """A pass that computed `real_tokens` / `efficiency` tokens."""
        self._real += real_tokens
        self._computed += real_tokens / efficiency

    def take(self) -> dict[str, float]:
        """`performance/logprob_padding_efficiency`; nothing if there was no pass."""
        real, computed = self._real, self._computed
        self._real, self._computed = 0.0, 0.0
        return {METRIC: real / computed} if computed else {}
