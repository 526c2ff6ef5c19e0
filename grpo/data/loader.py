"""Which prompts come next: an exact position that a checkpoint saves."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from grpo.data.permutation import permutation
from grpo.data.prompt import Prompt, fingerprint_of
from grpo.errors import CheckpointError, DataError


class PromptLoader:
    """Hands out prompts epoch after epoch; `take` goes over the end of an epoch without a gap.

    The order is a pure function of (seed, epoch), so the number of prompts handed out is the whole state. The position
    moves in `take` alone: nothing is fetched ahead, so a state saved after step n says exactly what n steps consumed.
    """

    def __init__(
        self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool = True, max_epochs: int | None = None
    ) -> None:
        """`max_epochs` None: without end. Raises DataError when there are no prompts."""
        if not prompts:
            raise DataError("data.train: there are no prompts")
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._total = None if max_epochs is None else max_epochs * len(prompts)
        self._position = 0
        self._fingerprint = fingerprint_of(prompts)
        self._orders: dict[int, NDArray[Any]] = {}  # of the last two epochs asked for: `at` looks back

    @property
    def position(self) -> int:
        """Prompts handed out since the start of the run."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the next prompt, from 0."""
        return self._position // len(self._prompts)

    @property
    def remaining(self) -> int | None:
        """Prompts until `max_epochs` are over; None without end."""
        return None if self._total is None else max(0, self._total - self._position)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts; fewer, at last none, only at the end of the last epoch."""
        if self.remaining is not None:
            count = min(count, self.remaining)
        taken = [self.at(position) for position in range(self._position, self._position + count)]
        self._position += count
        return taken

    def at(self, position: int) -> Prompt:
        """The prompt that is, or was, handed out as number `position`, from 0; the position of the loader stays."""
        epoch, index = divmod(position, len(self._prompts))
        return self._prompts[self._index(epoch, index)]

    def state(self) -> dict[str, Any]:
        """JSON values from which `load_state` continues."""
        return {
            "position": self._position,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "prompts": len(self._prompts),
            "fingerprint": self._fingerprint,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError when it is of other prompts, seed or order."""
        own = self.state()
        if set(state) != set(own):
            raise CheckpointError(f"loader state has the keys {sorted(state)}; wanted: {sorted(own)}")
        for key, setting in (("seed", "grpo.seed"), ("shuffle", "data.shuffle")):
            if state[key] != own[key]:
                raise CheckpointError(f"{setting}: the checkpoint was saved with {state[key]}, this run has {own[key]}")
        if state["fingerprint"] != own["fingerprint"]:
            raise CheckpointError(
                f"data.train: the checkpoint was saved with other prompts ({state['prompts']}, fingerprint "
                f"{state['fingerprint'][:12]}; this run has {own['prompts']}, {own['fingerprint'][:12]}); resume with "
                "the same data, tokenizer, chat template and length limit"
            )
        position = state["position"]
        if not isinstance(position, int) or position < 0:
            raise CheckpointError(f"loader state: position {position!r} is not a count of prompts")
        self._position = position

    def _index(self, epoch: int, index: int) -> int:
        if not self._shuffle:
            return index
        if epoch not in self._orders:
            if len(self._orders) == 2:
                del self._orders[min(self._orders)]
            self._orders[epoch] = permutation(len(self._prompts), seed=self._seed, stream=epoch)
        return int(self._orders[epoch][index])
