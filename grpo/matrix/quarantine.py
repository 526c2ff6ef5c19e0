"""The limits of quarantine: few cases, for a short time, extended once."""

import datetime as dt

from grpo.matrix.schema import Quarantine

LARGEST_SHARE = 0.02  # of all cases
DAYS = 30


def problems(quarantine: Quarantine, cases: int, today: dt.date) -> list[str]:
    """What does not keep to the limits, of a matrix with so many cases."""
    found = []
    most = int(LARGEST_SHARE * cases)
    if len(quarantine.cases) > most:
        found.append(
            f"{len(quarantine.cases)} of {cases} cases are quarantined, and at most {most} may be: mend or delete one"
        )
    for case, held in quarantine.cases.items():
        start = held.since if held.extended_from is None else held.extended_from
        if today > held.until:
            found.append(f"{case}: its quarantine ended on {held.until}: mend it, or delete it ({held.issue})")
        if not start <= held.until <= start + dt.timedelta(days=DAYS):
            found.append(f"{case}: until {held.until}: at most {DAYS} days after {start}")
        if held.extended_from is not None and not held.since <= held.extended_from <= held.since + dt.timedelta(
            days=DAYS
        ):
            found.append(
                f"{case}: extended_from {held.extended_from}: its first end, within {DAYS} days of {held.since}"
            )
    return found
