"""Buildkite's pipelines: the gate of pull requests, and one for each schedule."""

from typing import Any

from ci.pipelines.common import (
    CHECKS,
    CPU_INDEX,
    INSTALL,
    NIGHTLY_SLURM_MINUTES,
    REPORTS,
    SLURM,
    SLURM_NIGHTLY,
    UNPACKING_MINUTES,
    as_root,
    dump,
    minutes,
    on_hardware,
    pythons,
    shard_count,
)
from grpo.matrix.load import Matrix

Step = dict[str, Any]

QUEUE = "cpu"
NO_FORK = "build.pull_request.repository.fork != true"


def files(matrix: Matrix) -> dict[str, str]:
    """Text by path."""
    pipelines = {"pipeline": _gate(matrix)}
    pipelines |= {cadence: _scheduled(matrix, cadence) for cadence in ("nightly", "weekly", "release")}
    return {f".buildkite/{name}.yml": dump(pipeline) for name, pipeline in pipelines.items()}


def _step(key: str, commands: list[str], limit: int, queue: str = QUEUE, **more: Any) -> Step:
    return {
        "label": more.pop("label", key),
        "key": key,
        "agents": {"queue": queue},
        "timeout_in_minutes": limit,
        "command": "\n".join(commands) + "\n",
        **more,
    }


def _gate(matrix: Matrix) -> Step:
    budget, count, versions = matrix.budgets.gate_minutes, shard_count(matrix), pythons(matrix)
    kept: Step = {"artifact_paths": [f"{REPORTS}/**/*"]}
    of_python = "{{matrix}}"
    nox = f"python{of_python} -m nox"
    junit = f"{REPORTS}/unit-{of_python}/unit.xml"
    number = "$$((BUILDKITE_PARALLEL_JOB + 1))"
    steps = [
        _step("lint", [INSTALL, "nox -s lint"], minutes(budget.lint)),
        _step("checks", [INSTALL, CHECKS], minutes(budget.lint)),
        _step(
            "unit",
            [f"python{of_python} -m pip install --quiet nox", f"{nox} -s unit -- --junitxml={junit} tests/unit"],
            minutes(budget.unit), matrix=versions, **kept,
        ),
        _step(
            "functional",
            [
                INSTALL,
                f"trap 'mkdir -p {REPORTS} && cp -r runs/junit/functional-{number} {REPORTS}/' EXIT",
                f"nox -s gate -- --only functional --shard {number}/$$BUILDKITE_PARALLEL_JOB_COUNT",
            ],
            minutes(budget.functional / count), parallelism=count, **kept,
        ),
        _step("slurm", _slurm(SLURM), minutes(budget.slurm), **kept),
    ]  # fmt: skip
    keys = [step["key"] for step in steps]
    expected = " ".join([*(f"unit-{version}" for version in versions), "slurm"])
    results = " ".join(f'{key}="$$(buildkite-agent step get outcome --step {key})"' for key in keys)
    last = [
        f'buildkite-agent artifact download "{REPORTS}/**/*" .',
        f"python3 ci/verdict.py --reports {REPORTS} --results {results} --expect {expected} --shards {count}",
    ]
    return {
        "env": {**CPU_INDEX, "GATE_BASE": "origin/${BUILDKITE_PULL_REQUEST_BASE_BRANCH}"},
        "steps": [*steps, {"wait": None, "continue_on_failure": True}, _step("gate", last, UNPACKING_MINUTES)],
    }


def _slurm(command: str) -> list[str]:
    keep = f"trap 'mkdir -p {REPORTS}/slurm && cp runs/junit/slurm.xml {REPORTS}/slurm/' EXIT"
    return [INSTALL, keep, as_root(command, "$$")]


def _scheduled(matrix: Matrix, cadence: str) -> Step:
    steps: list[Step] = []
    if cadence != "weekly":
        steps += [
            _step(
                layer, [INSTALL, f'nox -s {layer} -- --junitxml={REPORTS}/{layer}/{layer}.xml -m "" tests/{layer}'],
                minutes(60 * matrix.budgets.cpu_hours.nightly), artifact_paths=[f"{REPORTS}/**/*"],
            )
            for layer in ("unit", "functional")
        ]  # fmt: skip
        steps.append(
            _step("slurm", _slurm(SLURM_NIGHTLY), minutes(NIGHTLY_SLURM_MINUTES), artifact_paths=[f"{REPORTS}/**/*"])
        )
    for one in on_hardware(matrix, cadence):
        steps.append(
            _step(
                f"{one.case}-{one.partition}", [INSTALL, one.command], one.minutes, queue=one.partition,
                artifact_paths=["runs/verdicts/**/*", "runs/matrix/**/*"], **{"if": NO_FORK},
            )
        )  # fmt: skip
    report = [
        INSTALL,
        f'buildkite-agent artifact download "{REPORTS}/**/*" . || true',
        'buildkite-agent artifact download "runs/verdicts/**/*" . || true',
        'buildkite-agent artifact download "runs/matrix/**/*" . || true',
        f'nox -s matrix -- record --commit "$$BUILDKITE_COMMIT" {REPORTS} runs/verdicts runs/matrix',
        "nox -s drift",
        f"nox -s report -- --reports {REPORTS}",
    ]
    last = _step("report", report, 2 * UNPACKING_MINUTES, artifact_paths=["runs/report/**/*", "runs/history.csv"])
    return {"env": dict(CPU_INDEX), "steps": [*steps, {"wait": None, "continue_on_failure": True}, last]}
