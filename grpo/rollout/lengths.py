"""The distribution of completion lengths that a run replays: recorded by another run, or made with a given mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo.config.schema import Config
from grpo.data.lengths import completion_lengths
from grpo.errors import ConfigError, TelemetryError
from grpo.telemetry.journal import read_journal
from grpo.telemetry.run_directory import LENGTHS

QUANTILES = 2048  # that a distribution is reduced to, since it travels with the requests
_KEY = "policy.generation.replay_lengths"


def replayed_lengths(config: Config) -> tuple[int, ...] | None:
    """The distribution's quantiles, ascending, in tokens; None where lengths are sampled.

    Raises:
        ConfigError: the file cannot be read or has no lengths.
    """
    settings = config.policy.generation.replay_lengths
    if settings.file is not None:
        return quantiles(recorded_lengths(Path(settings.file)), QUANTILES)
    if settings.mean is None:
        return None
    if settings.shape is None:
        return (round(settings.mean),)
    total, longest = config.policy.max_total_sequence_length, config.policy.generation.max_new_tokens
    maximum = min(total - 1, longest or total)
    return completion_lengths(QUANTILES, mean=settings.mean, maximum=maximum, shape=settings.shape)


def recorded_lengths(path: Path) -> list[int]:
    """All lengths that a run recorded, ascending. `path`: its directory, or the file in it. Raises ConfigError."""
    file = path / LENGTHS if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{_KEY}.file={path}: expected a run directory, or the {LENGTHS} of one")
    try:
        found = [length for line in read_journal(file) for length in line["lengths"]]
    except (TelemetryError, KeyError, TypeError) as error:
        raise ConfigError(f"{_KEY}.file={path}: no lengths as a run writes them ({error})") from error
    if not found or not all(isinstance(length, int) and length > 0 for length in found):
        raise ConfigError(f"{_KEY}.file={path}: expected a line a step with `lengths`, whole numbers above 0")
    return sorted(found)


def quantiles(ascending: Sequence[int], count: int) -> tuple[int, ...]:
    """At most `count` values in the middle of equal parts of the distribution; the longest stays the longest."""
    if len(ascending) <= count:
        return tuple(ascending)
    kept = [ascending[int((at + 0.5) / count * len(ascending))] for at in range(count)]
    return (*kept[:-1], ascending[-1])
