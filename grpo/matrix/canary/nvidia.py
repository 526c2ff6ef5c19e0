"""What nvidia-smi says of a GPU: clocks, why they are held back, ECC errors."""

import csv
import subprocess
from typing import Any

_SECONDS = 5.0
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock",
}
_FIELDS = {
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
}
# The newer name first; drivers before 535 know the other alone.
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


def read_gpu(uuid: str) -> dict[str, Any]:
    """The state of one GPU now; {} where nvidia-smi is missing, fails or does not answer."""
    for reasons in _REASON_FIELDS:
        command = ["nvidia-smi", "-i", uuid, f"--query-gpu={query_fields(reasons)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if done.returncode == 0:
            return parse_state(done.stdout)
    return {}


def query_fields(reasons: str) -> str:
    """The argument of --query-gpu."""
    return ",".join((*_FIELDS.values(), reasons))


def parse_state(output: str) -> dict[str, Any]:
    """One line of nvidia-smi's CSV as figures and words. What the GPU does not have is left out."""
    row = next(csv.reader(output.splitlines(), skipinitialspace=True), [])
    if len(row) != len(_FIELDS) + 1:
        return {}
    state: dict[str, Any] = {}
    for name, text in zip(_FIELDS, row, strict=False):
        try:
            state[name] = float(text)
        except ValueError:  # [N/A], [Not Supported]
            continue
    throttle = throttle_reasons(row[-1])
    if throttle is not None:
        state["throttle"] = throttle
    return state


def throttle_reasons(bits: str) -> list[str] | None:
    """`0x0000000000000044` as words; None where it is no number."""
    try:
        value = int(bits, 16)
    except ValueError:
        return None
    return [word for bit, word in _REASONS.items() if value & bit]
