"""What Slurm says of a job, read from the text of its commands."""

import re
from dataclasses import dataclass

# A job in one of these goes no further.
FINAL = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
))  # fmt: skip
WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING"))
# Reasons for which a pending job will never start, however long one waits.
HOPELESS = frozenset((
    "AccountNotAllowed", "AssocMaxCpuPerJobLimit", "AssocMaxGRESPerJob", "AssocMaxMemPerJob", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "JobHeldAdmin", "PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit", "QOSMaxGRESPerJob",
    "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed",
    "ReservationDeleted", "launch failed requeued held",
))  # fmt: skip

SQUEUE_FORMAT = "%i|%T|%r|%N|%M"
SACCT_FORMAT = "JobIDRaw,State,NodeList,ElapsedRaw"
_NO_NODES = frozenset(("(null)", "None assigned", ""))


@dataclass(frozen=True)
class Seen:
    """A job as the scheduler sees it at one moment."""

    state: str  # Slurm's own name: PENDING, RUNNING, COMPLETED, ...
    reason: str = ""  # why it is pending, or how it ended
    nodes: str = ""  # as Slurm writes lists: gpu[1-4]
    elapsed: float = 0.0  # seconds that it has run

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def hopeless(self) -> bool:
        return self.state == "PENDING" and self.reason in HOPELESS


def parse_squeue(text: str) -> dict[str, Seen]:
    """Of `squeue --noheader --format=SQUEUE_FORMAT`, by job id."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == len(SQUEUE_FORMAT.split("|")):
            job_id, state, reason, nodes, elapsed = parts
            found[job_id.strip()] = Seen(state, _reason(reason), _nodes(nodes), duration(elapsed))
    return found


def parse_sacct(text: str) -> dict[str, Seen]:
    """Of `sacct --noheader --parsable2 --allocations --duplicates --format=SACCT_FORMAT`, by job id.

    A job that was requeued has a line for each of its runs: the last one tells the state, and all of them the time.
    """
    found: dict[str, Seen] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != len(SACCT_FORMAT.split(",")) or not parts[1]:
            continue
        job_id, state, nodes, elapsed = parts
        before = found[job_id].elapsed if job_id in found else 0.0
        seconds = before + (float(elapsed) if elapsed.isdigit() else 0.0)
        found[job_id] = Seen(state.split()[0], "", _nodes(nodes), seconds)  # "CANCELLED by 0"
    return found


def parse_scontrol(text: str) -> dict[str, Seen]:
    """Of `scontrol --oneliner show job ID`, by job id."""
    found = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^|\s)(JobId|JobState|Reason|NodeList|RunTime)=(\S+)", line))
        if "JobId" in fields and "JobState" in fields:
            found[fields["JobId"]] = Seen(
                fields["JobState"], _reason(fields.get("Reason", "")), _nodes(fields.get("NodeList", "")),
                duration(fields.get("RunTime", "")),
            )  # fmt: skip
    return found


def duration(text: str) -> float:
    """Seconds of Slurm's [days-][hours:]minutes:seconds; 0 for what is none (INVALID, UNLIMITED)."""
    found = re.fullmatch(r"\s*(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\s*", text)
    if found is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds


def _reason(text: str) -> str:
    text = text.strip().strip("()")
    return "" if text in {"None", "null"} else text


def _nodes(text: str) -> str:
    text = text.strip()
    return "" if text in _NO_NODES else text
