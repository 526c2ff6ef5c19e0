"""GitHub's workflows: the gate of pull requests, the nightly, weekly and release runs, and approved runs of forks."""

import re
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
    OnHardware,
    as_root,
    dump,
    hardware_cases,
    minutes,
    on_hardware,
    pythons,
    shard_count,
)
from grpo.matrix.load import Matrix

Job = dict[str, Any]

RUNNER = "ubuntu-24.04"
# Actions by the hash of a commit, since a tag can be moved; the tag that it had stands beside it.
ACTIONS = {
    "actions/checkout": ("08c6903cd8c0fde910a37f88322edcfb5dd907a8", "v5.0.0"),
    "actions/setup-python": ("e797f83bcb11b83ae66e0230d6156d7c80228e7c", "v6.0.0"),
    "actions/cache": ("0057852bfaa89a56745cba8c7296529d2fc39830", "v4.3.0"),
    "actions/upload-artifact": ("ea165f8d65b6e75b540449e92b4886f43607fa02", "v4.6.2"),
    "actions/download-artifact": ("634f93cb2916e3fdff6788551b99b062d0335ce0", "v5.0.0"),
}
READ_ONLY = {"contents": "read"}
SCHEDULES = {"nightly": "17 1 * * *", "weekly": "43 3 * * 6"}
FOLDER = ".github/workflows"
VERDICTS = "runs/verdicts/\nruns/matrix/\n"  # of cases that ran on this machine, and as jobs
# Set where runners of the partitions are: elsewhere, in a fork say, their jobs would wait for ever.
HAS_HARDWARE = "vars.GRPO_HARDWARE == 'true'"


def files(matrix: Matrix) -> dict[str, str]:
    """Text by path."""
    workflows = {
        "gate": _gate(matrix),
        "nightly": _scheduled(matrix, "nightly"),
        "weekly": _scheduled(matrix, "weekly"),
        "release": _scheduled(matrix, "release"),
        "approved": _approved(matrix),
    }
    return {f"{FOLDER}/{name}.yml": _text(workflow) for name, workflow in workflows.items()}


def _text(workflow: Job) -> str:
    return re.sub(
        r"(uses: )(\S+)@([0-9a-f]{40})$",
        lambda found: f"{found[0]} # {ACTIONS[found[2]][1]}",
        dump(workflow),
        flags=re.MULTILINE,
    )


def _use(action: str, **settings: Any) -> Job:
    step: Job = {"uses": f"{action}@{ACTIONS[action][0]}"}
    return {**step, "with": settings} if settings else step


def _prepare(python: str, *, lock: str, history: bool = False, ref: str | None = None) -> list[Job]:
    """Check out, Python, pip's cache by lock, nox. No credentials stay on the machine."""
    where = {} if ref is None else {"ref": ref}
    depth = {"fetch-depth": 0} if history else {}
    return [
        _use("actions/checkout", **where, **depth, **{"persist-credentials": False}),
        _use("actions/setup-python", **{"python-version": python}),
        _use(
            "actions/cache",
            path="~/.cache/pip",
            key=f"pip-{python}-{lock}-${{{{ hashFiles('ci/locks/{lock}.txt') }}}}",
        ),
        {"run": INSTALL},
    ]


def _job(steps: list[Job], limit: int, *, env: Job | None = None, **more: Any) -> Job:
    job: Job = {"runs-on": RUNNER, "timeout-minutes": limit, **more}
    return {**job, **({"env": env} if env else {}), "steps": steps}


def _run(command: str, **env: str) -> Job:
    return {"run": command, **({"env": env} if env else {})}


def _upload(name: str, path: str) -> Job:
    settings = {"name": name, "path": path, "if-no-files-found": "error", "retention-days": 14}
    return {"if": "always()", **_use("actions/upload-artifact", **settings)}


def _gate(matrix: Matrix) -> Job:
    budget, default, count = matrix.budgets.gate_minutes, pythons(matrix)[0], shard_count(matrix)
    of_python, of_shard = "${{ matrix.python }}", "${{ matrix.shard }}"
    unit = [*_prepare(of_python, lock="core"), _run("nox -s unit"), _upload(f"unit-{of_python}", "runs/junit/unit.xml")]
    functional = [
        *_prepare(default, lock="cpu", history=True),
        _run('nox -s gate -- --only functional --shard "$SHARD"', SHARD=f"{of_shard}/{count}"),
        _upload(f"functional-{of_shard}", f"runs/junit/functional-{of_shard}/"),
    ]
    slurm = [*_prepare(default, lock="cpu"), _run(as_root(SLURM)), _upload("slurm", "runs/junit/slurm.xml")]
    jobs = {
        "lint": _job([*_prepare(default, lock="core"), _run("nox -s lint")], minutes(budget.lint), env=CPU_INDEX),
        "checks": _job([*_prepare(default, lock="core"), _run(CHECKS)], minutes(budget.lint), env=CPU_INDEX),
        "unit": _job(
            unit,
            minutes(budget.unit),
            env=CPU_INDEX,
            strategy={"fail-fast": False, "matrix": {"python": pythons(matrix)}},
        ),
        "functional": _job(
            functional,
            minutes(budget.functional / count),
            env=CPU_INDEX,
            strategy={"fail-fast": False, "matrix": {"shard": list(range(1, count + 1))}},
        ),
        "slurm": _job(slurm, minutes(budget.slurm), env=CPU_INDEX),
    }
    return {
        "name": "gate",
        "on": {"pull_request": None, "merge_group": None, "push": {"branches": ["main"]}},
        "permissions": READ_ONLY,
        "concurrency": {
            "group": "gate-${{ github.workflow }}-${{ github.ref }}",
            "cancel-in-progress": "${{ github.event_name == 'pull_request' }}",
        },
        "env": {"GATE_BASE": "${{ github.event.pull_request.base.sha || github.event.merge_group.base_sha }}"},
        "jobs": {**jobs, "gate": _last(list(jobs), pythons(matrix), count)},
    }


def _last(needs: list[str], versions: list[str], count: int) -> Job:
    """The one required check: it always runs, so that it cannot pass by being skipped."""
    expected = " ".join([*(f"unit-{version}" for version in versions), "slurm"])
    steps = [
        _use("actions/checkout", **{"persist-credentials": False}),
        _use("actions/download-artifact", path=REPORTS),
        _run(
            f"python3 ci/verdict.py --reports {REPORTS} --expect {expected} --shards {count}",
            NEEDS="${{ toJSON(needs) }}",
        ),
    ]
    return {"name": "gate", "if": "always()", "needs": needs, **_job(steps, UNPACKING_MINUTES)}


def _scheduled(matrix: Matrix, cadence: str) -> Job:
    """A cadence's own cases. The nightly run also has the whole of what pull requests select from, on every Python."""
    starts: Job = {"workflow_dispatch": None}
    starts |= {"schedule": [{"cron": SCHEDULES[cadence]}]} if cadence in SCHEDULES else {"push": {"tags": ["v*"]}}
    jobs: dict[str, Job] = {} if cadence == "weekly" else _whole_layers(matrix)
    hardware = on_hardware(matrix, cadence)
    if hardware:
        jobs["hardware"] = _hardware(hardware)
    return {
        "name": cadence,
        "on": starts,
        "permissions": READ_ONLY,
        "concurrency": {"group": cadence, "cancel-in-progress": False},
        "jobs": {**jobs, "report": _report(matrix, list(jobs))},
    }


def _whole_layers(matrix: Matrix) -> dict[str, Job]:
    limit = minutes(60 * matrix.budgets.cpu_hours.nightly)
    of_python, layer = "${{ matrix.python }}", "${{ matrix.layer }}"
    steps = [
        *_prepare(of_python, lock="cpu"),
        # Each run is in an order of its own, told in its first lines.
        _run('nox -s "$LAYER" -- -m "" "tests/$LAYER"', LAYER=layer),
        _upload(f"{layer}-{of_python}", f"runs/junit/{layer}.xml"),
    ]
    tests = {"python": list(matrix.stacks["cpu"].python), "layer": ["unit", "functional"]}
    newest = [*_prepare(pythons(matrix)[0], lock="cpu"), _run("nox -s newest")]
    slurm = [
        *_prepare(pythons(matrix)[0], lock="cpu"),
        _run(as_root(SLURM_NIGHTLY)),
        _upload("slurm", "runs/junit/slurm.xml"),
    ]
    return {
        "slurm": _job(slurm, minutes(NIGHTLY_SLURM_MINUTES), env=CPU_INDEX),
        "tests": _job(steps, limit, env=CPU_INDEX, strategy={"fail-fast": False, "matrix": tests}),
        "newest": _job(newest, limit, env=CPU_INDEX, **{"continue-on-error": True}),
    }


def _hardware(cases: list[OnHardware]) -> Job:
    """On runners of one's own, which only the default branch and tags reach."""
    include = [
        {"case": one.case, "command": one.command, "partition": one.partition, "minutes": one.minutes} for one in cases
    ]
    steps = [
        _use("actions/checkout", **{"persist-credentials": False}),
        _run(INSTALL),
        _run("${{ matrix.command }}"),
        _upload("hardware-${{ matrix.case }}-${{ matrix.partition }}", VERDICTS),
    ]
    return {
        "if": HAS_HARDWARE,
        "runs-on": ["self-hosted", "${{ matrix.partition }}"],
        "environment": "${{ matrix.partition }}",
        "timeout-minutes": "${{ matrix.minutes }}",
        "strategy": {"fail-fast": False, "matrix": {"include": include}},
        "steps": steps,
    }


def _report(matrix: Matrix, needs: list[str]) -> Job:
    """History, what has drifted, and the page. It tells; what failed has failed already."""
    steps = [
        *_prepare(pythons(matrix)[0], lock="core"),
        _use(
            "actions/cache", path="runs/history.csv", key="history-${{ github.run_id }}", **{"restore-keys": "history-"}
        ),
        _use("actions/download-artifact", path=REPORTS),
        _run(f'nox -s matrix -- record --commit "$GITHUB_SHA" {REPORTS}'),
        _run("nox -s drift"),
        _run(f'nox -s report -- --reports {REPORTS} && cat runs/report/matrix.md >> "$GITHUB_STEP_SUMMARY"'),
        _upload("matrix", "runs/report/"),
    ]
    return {"if": "always()", "needs": needs, **_job(steps, 2 * UNPACKING_MINUTES, env=CPU_INDEX)}


def _approved(matrix: Matrix) -> Job:
    """Code of a fork on GPUs or Slurm: only a maintainer can start this, and names the commit that was read."""
    cases = hardware_cases(matrix)
    partitions = sorted({name for case in cases for name in case.partitions})
    inputs = {
        "commit": {
            "description": "the whole hash of the commit that you have read",
            "required": True,
            "type": "string",
        },
        "case": {"required": True, "type": "choice", "options": [case.id for case in cases]},
        "partition": {"required": True, "type": "choice", "options": partitions},
    }
    layers = "\n".join(f"  {case.id}) layer={case.layer} ;;" for case in cases)
    steps = [
        _run(
            'case "$COMMIT" in *[!0-9a-f]*) false ;; esac && [ "${#COMMIT}" = 40 ] || '
            '{ echo "not the whole hash of a commit: $COMMIT"; exit 1; }',
            COMMIT="${{ inputs.commit }}",
        ),
        _use("actions/checkout", ref="${{ inputs.commit }}", **{"persist-credentials": False}),
        _run(INSTALL),
        _run(
            f'case "$CASE" in\n{layers}\nesac\nnox -s "$layer" -- "$CASE" --partition "$PARTITION"\n',
            CASE="${{ inputs.case }}", PARTITION="${{ inputs.partition }}",
        ),
        _upload("verdict", VERDICTS),
    ]  # fmt: skip
    limit = max(one.minutes for cadence in ("nightly", "weekly", "release") for one in on_hardware(matrix, cadence))
    job = {
        "if": HAS_HARDWARE,
        "runs-on": ["self-hosted", "${{ inputs.partition }}"],
        "environment": "${{ inputs.partition }}",
        "timeout-minutes": limit,
        "steps": steps,
    }
    return {
        "name": "approved",
        "on": {"workflow_dispatch": {"inputs": inputs}},
        "permissions": READ_ONLY,
        "jobs": {"case": job},
    }
