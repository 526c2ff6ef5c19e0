"""What a rule says of a configuration."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from grpo.config.schema import Config


@dataclass(frozen=True)
class Conflict:
    """Keys that cannot hold these values together. The values and where they were set are added when it is shown."""

    keys: tuple[str, ...]
    reason: str  # why, and what would be valid


Rule = Callable[[Config], Iterator[Conflict]]
