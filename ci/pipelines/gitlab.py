"""GitLab's pipeline: the gate of merge requests, and schedules that set CADENCE."""

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

Job = dict[str, Any]

FILE = ".gitlab-ci.yml"
# A scheduled run of the default branch, started by the project's own schedule.
_SCHEDULED = '$CI_PIPELINE_SOURCE == "schedule" && $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH'
_REQUEST = [{"if": '$CI_PIPELINE_SOURCE == "merge_request_event"'}, {"if": '$CI_PIPELINE_SOURCE == "push"'}]


def files(matrix: Matrix) -> dict[str, str]:
    """Text by path."""
    return {FILE: dump(_pipeline(matrix))}


def _pipeline(matrix: Matrix) -> Job:
    return {
        "workflow": {
            "rules": [
                {"if": '$CI_PIPELINE_SOURCE == "merge_request_event"'},
                {"if": '$CI_PIPELINE_SOURCE == "push" && $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH'},
                {"if": _SCHEDULED},
                {"if": "$CI_COMMIT_TAG"},
            ]
        },
        "stages": ["test", "gate", "hardware", "report"],
        "variables": {
            **CPU_INDEX, "PIP_CACHE_DIR": "$CI_PROJECT_DIR/.nox/pip", "GATE_BASE": "$CI_MERGE_REQUEST_DIFF_BASE_SHA",
            "GIT_DEPTH": "0",
        },
        "default": {
            "image": f"python:{pythons(matrix)[0]}",
            "interruptible": True,
            "before_script": [INSTALL],
            "cache": {"key": {"files": ["ci/locks/core.txt", "ci/locks/cpu.txt"]}, "paths": [".nox/pip"]},
        },
        **_gate(matrix),
        **_scheduled(matrix),
    }  # fmt: skip


def _job(stage: str, script: list[str], limit: int, **more: Any) -> Job:
    return {"stage": stage, "timeout": f"{limit} minutes", "script": script, **more}


def _kept() -> Job:
    return {"when": "always", "paths": [f"{REPORTS}/"], "expire_in": "2 weeks"}


def _passed(name: str, command: str) -> list[str]:
    return [command, f"mkdir -p {REPORTS}/{name}", f"touch {REPORTS}/{name}/passed"]


def _gate(matrix: Matrix) -> dict[str, Job]:
    budget, count, versions = matrix.budgets.gate_minutes, shard_count(matrix), pythons(matrix)
    requests = {"rules": _REQUEST, "artifacts": _kept()}
    expected = " ".join([*(f"unit-{version}" for version in versions), "slurm"])
    of_shard = "$CI_NODE_INDEX"
    jobs = {
        "lint": _job("test", _passed("lint", "nox -s lint"), minutes(budget.lint), **requests),
        "checks": _job("test", _passed("checks", CHECKS), minutes(budget.lint), **requests),
        "unit": _job(
            "test",
            [f"nox -s unit -- --junitxml={REPORTS}/unit-$PYTHON/unit.xml tests/unit"],
            minutes(budget.unit), image="python:$PYTHON", parallel={"matrix": [{"PYTHON": versions}]}, **requests,
        ),
        "functional": _job(
            "test",
            [
                f"nox -s gate -- --only functional --shard {of_shard}/$CI_NODE_TOTAL",
                f"mkdir -p {REPORTS} && cp -r runs/junit/functional-{of_shard} {REPORTS}/",
            ],
            minutes(budget.functional / count), parallel=count, **requests,
        ),
        # The image is Debian's, and its user root.
        "slurm": _slurm(SLURM, minutes(budget.slurm), **requests),
    }  # fmt: skip
    gate = _job(
        "gate",
        [f"python3 ci/verdict.py --reports {REPORTS} --passed lint checks --expect {expected} --shards {count}"],
        UNPACKING_MINUTES, before_script=[], needs=list(jobs),
        rules=[{**rule, "when": "always"} for rule in _REQUEST],
    )  # fmt: skip
    return {**jobs, "gate": gate}


def _slurm(command: str, limit: int, **more: Any) -> Job:
    # After a script that failed, too.
    keep = f"mkdir -p {REPORTS}/slurm && cp runs/junit/slurm.xml {REPORTS}/slurm/"
    return _job("test", [as_root(command)], limit, after_script=[keep], **more)


def _scheduled(matrix: Matrix) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    nightly = [{"if": f'{_SCHEDULED} && $CADENCE == "nightly"'}, {"if": "$CI_COMMIT_TAG"}]
    jobs["whole-slurm"] = _slurm(SLURM_NIGHTLY, minutes(NIGHTLY_SLURM_MINUTES), artifacts=_kept(), rules=nightly)
    layers = [{"LAYER": ["unit", "functional"], "PYTHON": list(matrix.stacks["cpu"].python)}]
    jobs["whole-layers"] = _job(
        "test",
        [
            f'nox -s $LAYER -- --junitxml={REPORTS}/$LAYER-$PYTHON/$LAYER.xml -m "" tests/$LAYER',
        ],
        minutes(60 * matrix.budgets.cpu_hours.nightly), image="python:$PYTHON", parallel={"matrix": layers},
        artifacts=_kept(), rules=nightly,
    )  # fmt: skip
    for cadence in ("nightly", "weekly", "release"):
        rule = "$CI_COMMIT_TAG" if cadence == "release" else f'{_SCHEDULED} && $CADENCE == "{cadence}"'
        for one in on_hardware(matrix, cadence):
            # The runners are protected: they take jobs of protected branches and tags alone, so never a fork's.
            jobs[f"{one.case} on {one.partition}"] = _job(
                "hardware", [one.command], one.minutes, tags=[one.partition], rules=[{"if": rule}],
                environment={"name": one.partition}, interruptible=False,
                artifacts={"when": "always", "paths": ["runs/verdicts/", "runs/matrix/"], "expire_in": "2 weeks"},
            )  # fmt: skip
    jobs["report"] = _job(
        "report",
        [
            f'nox -s matrix -- record --commit "$CI_COMMIT_SHA" {REPORTS} runs/verdicts runs/matrix',
            "nox -s drift",
            f"nox -s report -- --reports {REPORTS}",
        ],
        2 * UNPACKING_MINUTES, rules=[{"if": _SCHEDULED, "when": "always"}],
        cache={"key": "history", "paths": ["runs/history.csv"]},
        artifacts={"paths": ["runs/report/"], "expire_in": "4 weeks"},
    )  # fmt: skip
    return jobs
