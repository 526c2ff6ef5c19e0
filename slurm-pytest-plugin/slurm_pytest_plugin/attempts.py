"""`attempts.json` in a case's folder: what became of each attempt, for people and for a second pytest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_pytest_plugin.failure_names import FAILURES
from slurm_pytest_plugin.ledger import LedgerError
from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.result import ResultError, read_result

FILE = "attempts.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Ended:
    """One attempt at its end."""

    outcome: Outcome
    counts: bool = True  # as a run of the case; False: the infrastructure spoilt it, and its job was tried again
    infra: bool = False  # the attempt after it is a retry


def write_attempts(folder: Path, ended: Sequence[Ended], *, final: bool) -> None:
    """Replace the file. `final`: the last of them is the end of the case."""
    last = ended[-1].outcome
    value = {
        "schema_version": SCHEMA_VERSION,
        "case": last.case,
        "final": final,
        "failure": last.failure if final else None,
        "sentence": last.sentence if final else None,
        "gpu_hours": round(last.gpu_hours, 4),
        "attempts": [_plain(each) for each in ended],
    }
    temporary = folder / f"{FILE}.tmp"
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / FILE)


def _plain(ended: Ended) -> dict[str, Any]:
    outcome = ended.outcome
    return {
        "attempt": outcome.attempts, "folder": outcome.folder.name, "counts": ended.counts, "infra": ended.infra,
        "why": outcome.why, "executor": outcome.executor, "state": outcome.state, "failure": outcome.failure,
        "message": outcome.message, "jobs": list(outcome.jobs), "nodes": outcome.nodes,
        "excluded": list(outcome.excluded), "restarts": outcome.restarts, "queued": round(outcome.queued, 1),
        "ran": round(outcome.ran, 1), "gpu_hours": round(outcome.gpu_hours, 4),
    }  # fmt: skip


def read_attempts(folder: Path, case: str, gpus: int) -> list[Ended]:
    """The attempts of a case, in order; none where there is no file. Raises LedgerError for one that cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema_version"] != SCHEMA_VERSION:
            raise LedgerError(f"{path}: schema_version {value['schema_version']}; this version reads {SCHEMA_VERSION}")
        return [_ended(folder, case, gpus, each) for each in value["attempts"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LedgerError(f"{path}: not the attempts of a case ({error!r})") from error


def _ended(folder: Path, case: str, gpus: int, value: dict[str, Any]) -> Ended:
    job_folder = folder / f"attempt-{int(value['attempt'])}"
    try:
        result = read_result(job_folder)
    except ResultError:
        result = None
    if value["failure"] is not None and value["failure"] not in FAILURES:
        raise ValueError(f"failure {value['failure']!r}")
    outcome = Outcome(
        case=case, executor=value["executor"], state=value["state"], result=result, failure=value["failure"],
        folder=job_folder, message=value["message"], jobs=tuple(value["jobs"]), nodes=value["nodes"],
        excluded=tuple(value["excluded"]), attempts=int(value["attempt"]), restarts=int(value["restarts"]),
        queued=float(value["queued"]), ran=float(value["ran"]), gpus=gpus, why=value["why"],
    )  # fmt: skip
    return Ended(outcome, counts=bool(value["counts"]), infra=bool(value["infra"]))
