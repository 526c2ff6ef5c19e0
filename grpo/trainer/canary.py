"""The canary of a run: what its node could do when it began. `grpo canary` measures; the judge decides."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from grpo.config.schema import Cluster
from grpo.errors import ConfigError
from grpo.telemetry.environment import lean_environment
from grpo.telemetry.journal import check_schema_version, replace_json
from grpo.telemetry.run_directory import RunDirectory

FILE_NAME = "canary.json"
DEADLINE_SECONDS = 150.0
_LAST_LINES = 500


def keep_canary(settings: Cluster, run: RunDirectory, environ: Mapping[str, str]) -> str | None:
    """Put `canary.json` into the run directory, as `cluster.canary` says; why there is none, where one was wanted.

    It runs in a process of its own, which leaves nothing on the GPUs, and before anything else is there. A run does not
    fail by it: without it the judge does not know the machine, and says so. Raises ConfigError for a `canary_file` that
    cannot be read.
    """
    if settings.canary_file is not None:
        replace_json(run.path / FILE_NAME, _read(Path(settings.canary_file)))
        return None
    if settings.canary == "off" or (settings.canary == "auto" and "SLURM_JOB_ID" not in environ):
        return None
    problem = _measure(run.path, environ)
    run.write_event("canary", problem=problem)
    return problem


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster.canary_file={path}: not a canary.json ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get("nodes"), list):
        raise ConfigError(f"cluster.canary_file={path}: not a canary.json (it has no nodes)")
    check_schema_version(value, str(path))
    return {name: each for name, each in value.items() if name != "schema_version"}


def _measure(directory: Path, environ: Mapping[str, str]) -> str | None:
    command = [sys.executable, "-m", "grpo", "canary", "--quiet", "--out", str(directory / FILE_NAME)]
    try:
        done = subprocess.run(  # noqa: S603 - this very program
            command,
            env=lean_environment(environ),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the canary did not end within {DEADLINE_SECONDS:g} s"
    if done.returncode != 0:
        return f"the canary ended with {done.returncode}: {done.stderr.strip()[-_LAST_LINES:]}"
    return None
