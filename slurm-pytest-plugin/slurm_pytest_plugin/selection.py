"""Which cases are run: exactly those that were named, or all."""

import difflib
from collections.abc import Iterable, Sequence

from slurm_pytest_plugin.case import Case, CaseError


def by_id(cases: Iterable[Case]) -> dict[str, Case]:
    """The cases by id. Raises CaseError where two have the same."""
    found: dict[str, Case] = {}
    for case in cases:
        if case.id in found:
            raise CaseError(f"two cases have the id {case.id}")
        found[case.id] = case
    return found


def chosen(cases: dict[str, Case], named: Sequence[str]) -> list[Case]:
    """Those of the cases that were named, in the order of the cases; all where none was."""
    return [case for case in cases.values() if not named or case.id in named]


def unknown(named: Sequence[str], known: Iterable[str]) -> str | None:
    """A message that names the nearest ids, where a named case does not exist."""
    ids = list(known)
    for name in named:
        if name not in ids:
            near = difflib.get_close_matches(name, ids, n=3, cutoff=0.4)
            nearest = f"; the nearest are {', '.join(near)}" if near else ""
            there = f" (there are {', '.join(sorted(ids))})" if ids and not near else ""
            return f"--case {name}: there is no such case{nearest}{there}"
    return None
