"""How numbers are written for people; the console and both reports share it."""

import math


def number(value: float | None) -> str:
    """About four significant digits; "-" for a value that was not measured."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (float(value).is_integer() and abs(value) < 1e4):
        return str(int(value))
    if abs(value) >= 1e4:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.4g}"


def seconds(value: float | None) -> str:
    """Seconds with a unit: `2.1 ms`, `0.312 s`, `47.2 s`; from two minutes on as `duration`."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value == 0:
        return "0 s"
    if abs(value) < 0.0995:
        return f"{value * 1000:.2g} ms" if abs(value) < 0.00995 else f"{value * 1000:.0f} ms"
    if abs(value) < 120:
        return f"{value:.3g} s"
    return duration(value)


def duration(value: float) -> str:
    """`0:42`, `12:05`, `3:07:42` (hours), `2 d 3:07:42`."""
    minutes, second = divmod(round(max(value, 0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def per_cent(share: float | None) -> str:
    """A share as `12.3 %`."""
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def count(value: float) -> str:
    """A large count with a suffix: `214 k`, `8.03 B`."""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {suffix}"
    return number(value)
