"""Run directories of a case of a small matrix of their own: complete, cheap, and as slow as one likes."""

import atexit
import json
import shutil
import tempfile
import uuid
from functools import cache
from pathlib import Path

from grpo.config import load_config
from grpo.matrix.load import find_matrices, load_matrix
from grpo.matrix.resolve import overrides_of
from grpo.telemetry.run_directory import RunDirectory
from tests.support.matrix import record

SMALL = """\
schema_version: 1
layer: functional
cases:
  small:
    recipe: tiny
    overrides: [checkpointing.enabled=false, grpo.val_period=0]
    partitions: [cpu-local]
    steps: 25
    time_limit: "00:05:00"
    tier: L0
    cadence: nightly
    owner: somebody
    paths: [grpo/**]
    checks: {against_reference: [timing/total, timing/refit]}
"""
UNMEASURED = 'schema_version: 1\nsource: {kind: none, owner: somebody, date: "2026-11-30", reason: not run yet}\n'


def small_matrix(folder: Path) -> Path:
    """A matrix with the case `small` on `cpu-local`, which has no reference yet."""
    (folder / "references" / "cpu-local").mkdir(parents=True)
    (folder / "partitions").mkdir()
    shutil.copy(find_matrices() / "partitions" / "cpu-local.yaml", folder / "partitions")
    (folder / "budgets.yaml").write_text((find_matrices() / "budgets.yaml").read_text())
    (folder / "small.yaml").write_text(SMALL)
    (folder / "references" / "cpu-local" / "small.yaml").write_text(UNMEASURED)
    return folder


def case_run(matrix, directory: Path, seconds=None, *, started=None, stack=None) -> Path:
    """A run directory of the case, every step alike. `stack` replaces recorded versions by name."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(_template(), directory)
    steps = range(1, matrix.case("small").steps + 1)
    lines = [json.dumps({"schema_version": 1, **record(step, seconds)}) + "\n" for step in steps]
    (directory / "metrics.jsonl").write_text("".join(lines))
    began = 0.0 if started is None else started
    own = {"run_id": uuid.uuid4().hex, "started": began, "ended": began + 10.0}
    _edit(directory / "manifest.json", lambda value: value.update(own))
    if stack is not None:
        _edit(directory / "environment.json", lambda value: value["stack"].update(stack))
    return directory


@cache
def _template() -> Path:
    """What is the same in every run, written once a process: it is put on disk with the care of a real run."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    case = load_matrix(small_matrix(folder / "matrices")).case("small")
    resolved = load_config(case.recipe, overrides_of(case))
    run = RunDirectory.open(
        folder / "run", "new", name="small", config_yaml=resolved.to_yaml(), command=["grpo"], facts={}, environ={}
    )
    run.finish("completed")
    _edit(folder / "run" / "nodes.json", lambda value: value["nodes"][0].update(gpus=[]))
    return folder / "run"


def _edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
