"""Run directories of a case of a small matrix of their own: complete, cheap, and as slow as one likes."""

import json
import shutil
from pathlib import Path

from grpo.config import load_config
from grpo.matrix.load import find_matrices
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
    case = matrix.case("small")
    resolved = load_config(case.recipe, overrides_of(case))
    run = RunDirectory.open(
        directory, "new", name="small", config_yaml=resolved.to_yaml(), command=["grpo"], facts={}, environ={}
    )
    for step in range(1, case.steps + 1):
        run.write_metrics(step, {name: value for name, value in record(step, seconds).items() if name != "step"})
    run.finish("completed")
    _edit(directory / "nodes.json", lambda value: value["nodes"][0].update(gpus=[]))
    if started is not None:
        _edit(directory / "manifest.json", lambda value: value.update(started=started, ended=started + 10.0))
    if stack is not None:
        _edit(directory / "environment.json", lambda value: value["stack"].update(stack))
    return directory


def _edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
