"""The nearest valid key to a misspelt one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

from grpo.config.schema import Config
from grpo.config.shape import section_keys, shape_of

_NEAR = 0.7


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`"; did you mean X?"`, or nothing where nothing is near."""
    others = [one for one in candidates if not word.startswith(f"{one}.")]
    scored = sorted(((_likeness(word, one), one) for one in others), key=lambda pair: (-pair[0], pair[1]))
    if not scored or scored[0][0] < _NEAR:
        return ""
    leaf = word.rpartition(".")[2]
    same_leaf = [one for score, one in scored if score >= _NEAR and one.rpartition(".")[2] == leaf]
    best = same_leaf[:3] or [scored[0][1]]
    return f"; did you mean {' or '.join(best)}?"


def valid_keys(key: str) -> list[str]:
    """Every key of the schema; the names of maps (`env.*`) are taken from `key` itself."""
    parts = key.split(".")
    found = []
    for pattern in section_keys(shape_of(Config)):
        names = pattern.split(".")
        place = names.index("*") if "*" in names else None
        if place is None:
            found.append(pattern)
        elif place < len(names) - 1 and len(parts) > place and parts[:place] == names[:place]:
            found.append(".".join([*names[:place], parts[place], *names[place + 1 :]]))
    return found


def _likeness(word: str, candidate: str) -> float:
    whole = SequenceMatcher(None, word, candidate).ratio()
    leaf = SequenceMatcher(None, word.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
    return max(whole, 0.3 * whole + 0.7 * leaf)
