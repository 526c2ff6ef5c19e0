"""The tasks of nox: what they hand to pytest, and what a change must pass on a machine with Python alone."""

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from grpo.cli import app
from grpo.matrix.load import load_matrix

ROOT = Path(__file__).parents[3]


class Session:
    """Stands for nox's: keeps what it is asked to run."""

    def __init__(self, *posargs):
        self.posargs = list(posargs)
        self.ran = []

    def run(self, *command, silent=False, **_):
        self.ran.append([Path(command[0]).name, *command[1:]])
        if "tests" in command:
            return json.dumps([f"node-of-{case}" for case in command[command.index("tests") + 2 :]])
        return json.dumps(["engines", "tiny-hf"]) if silent else True


@pytest.fixture(scope="module")
def loaded():
    """The file of tasks, once: nox refuses to register a task again."""
    pytest.importorskip("nox", reason="nox is in the environment of the unit layer alone")
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tasks(loaded, monkeypatch):
    monkeypatch.setattr(loaded, "environment", lambda session, stack: Path(stack) / "bin")
    monkeypatch.delenv("GATE_BASE", raising=False)
    monkeypatch.chdir(ROOT)
    return loaded


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], ["tests/functional"]),
        (["engines", "tiny-hf"], ["node-of-engines", "node-of-tiny-hf"]),
        (["engines", "-k", "sampling"], ["node-of-engines", "-k", "sampling"]),
        (["-k", "sampling"], ["-k", "sampling"]),
        (["tests/functional/data"], ["tests/functional/data"]),
        (["tests/functional/data/test_a.py::test_b[1]", "-x"], ["tests/functional/data/test_a.py::test_b[1]", "-x"]),
    ],
)
def test_ids_become_their_tests_and_the_rest_is_pytests_own(tasks, given, told):
    session = Session(*given)
    tasks.run_functional(session, session.posargs)
    last = session.ran[-1]
    assert last[: last.index("loadgroup") + 1] == ["pytest", "-n", "2", "--dist", "loadgroup"]
    assert last[last.index("loadgroup") + 1 :] == ["--junitxml=runs/junit/functional.xml", *told]


@pytest.mark.parametrize(
    ("given", "programs"),
    [
        (
            [],
            [
                "ruff",
                "ruff",
                "mypy",
                "python -m ci.gate checks",
                "pytest",
                "pytest",
                "python -m ci.gate select",
                "grpo",
                "pytest",
            ],
        ),
        (["--only", "checks"], ["python -m ci.gate checks"]),
        (["--without", "unit", "plugin", "functional"], ["ruff", "ruff", "mypy", "python -m ci.gate checks"]),
    ],
)
def test_the_gate_is_made_of_its_parts(tasks, given, programs):
    session = Session(*given)
    tasks.gate(session)
    names = [" ".join(command[:4]) if command[0] == "python" else command[0] for command in session.ran]
    assert names == programs


def test_a_shard_of_the_gate_leaves_its_report_in_a_folder_of_its_own(tasks):
    session = Session("--only", "functional", "--shard", "2/3", "--base", "abc")
    tasks.gate(session)
    select = session.ran[0]
    assert select[select.index("--base") + 1] == "abc"
    assert select[select.index("--shard") + 1] == "2/3"
    assert session.ran[-1][-1] == "--junitxml=runs/junit/functional-2/functional.xml"


class EndedError(Exception):
    """Stands for what nox raises."""


@pytest.mark.parametrize(("given", "how"), [([], "skip"), (["-k", "lost", "tests/slurm"], "error")])
@pytest.mark.parametrize("missing", [(1000, "/bin/apt-get", "no root"), (0, None, "no apt-get")])
def test_where_there_can_be_no_slurm_that_is_said_and_never_a_pass(tasks, monkeypatch, given, how, missing):
    user, apt, said = missing

    def ends(name):
        def end(message):
            raise EndedError(f"{name}: {message}")

        return end

    session = Session(*given)
    session.skip, session.error = ends("skip"), ends("error")
    monkeypatch.setattr(tasks.os, "geteuid", lambda: user)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: apt)
    with pytest.raises(EndedError, match=f"{how}: NO JOB HAS RUN ON A SLURM: there is {said}"):
        tasks.slurm(session)
    assert session.ran == []


@pytest.mark.parametrize(
    ("here", "answer", "can"),
    [
        (True, None, True),
        (False, "Inst munge (0.5)\nInst slurmd (22.05)\n", True),
        (False, "E: Unable\n", False),
    ],
)
def test_whether_slurm_is_here_or_can_be_had(tasks, monkeypatch, here, answer, can):
    asked = []
    session = SimpleNamespace(run=lambda *command, **_: asked.append(command[:2]) or answer)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: f"/bin/{name}" if here else None)
    assert tasks.slurm_can_be_installed(session) == can
    assert asked == ([] if here else [("apt-get", "update"), ("apt-get", "install")])


def test_where_slurm_cannot_be_had_the_gate_says_so(tasks, monkeypatch):
    session = Session()
    said = []
    session.skip = said.append
    monkeypatch.setattr(tasks.os, "geteuid", lambda: 0)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(tasks, "slurm_can_be_installed", lambda _: False)
    tasks.slurm(session)
    assert said == ["NO JOB HAS RUN ON A SLURM: there is no package of Slurm within reach of apt-get"]


def test_jobs_on_a_slurm_leave_a_report_in_the_order_of_their_files(tasks, monkeypatch):
    session = Session()
    monkeypatch.setattr(tasks.os, "geteuid", lambda: 0)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: f"/bin/{name}")
    tasks.slurm(session)
    assert session.ran == [["pytest", "-p", "no:randomly", "--junitxml=runs/junit/slurm.xml", "tests/slurm"]]


def test_the_script_of_ci_runs_the_gate_and_the_readmes_command():
    script = (ROOT / ".ci" / "run").read_text()
    (command,) = re.findall(
        r"^python3 -m pip install nox && (nox -s unit functional)$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    lines = [line.removeprefix(".nox/runner/bin/") for line in script.splitlines()]
    assert command in lines
    assert any(line.startswith("nox -s gate -- --only lint checks plugin") for line in lines)


def test_the_readme_names_every_command_and_guide():
    text = (ROOT / "README.md").read_text()
    told = set(re.findall(r"`grpo ([a-z]+)", text))
    assert set(typer.main.get_command(app).commands) == told
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r"\]\((docs/[a-z]+\.md)\)", text)) == guides


def test_all_twins_run_here_one_after_the_other(tasks):
    session = Session("twins", "-x")
    tasks.cluster(session)
    ((*command,),) = session.ran
    named = [command[at + 1] for at, part in enumerate(command) if part == "--case"]
    matrix = load_matrix(ROOT / "matrices")
    assert set(named) == {case.id for case in matrix.cases.values() if case.family == "tiny_cluster"}
    assert {f"tiny-{case.id}" for case in matrix.cases.values() if case.layer == "cluster" and case.gpus} == set(named)
    assert command[:3] == ["pytest", "--executor", "local"]
    assert command[command.index("--max-jobs") + 1] == "1"
    assert command[-2:] == ["-x", "tests/cluster"]
