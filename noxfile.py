"""Every task of the project. `nox -l` lists them; plain `nox` checks what a change needs before it is pushed."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "unit"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
LOCKS = ROOT / "ci" / "locks"
ENVIRONMENTS = ROOT / ".nox"
JUNIT = Path("runs") / "junit"
GATE_PARTS = ("lint", "checks", "unit", "plugin", "functional")
CASE_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PLUGIN = "slurm-pytest-plugin"
PYTHONS = ("3.11", "3.12", "3.13")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def environment(session: nox.Session, stack: str) -> Path:
    """The `bin` folder of the stack's environment, made or brought up to date if its lock has changed.

    Sessions share one environment a stack (nox would make one a session, a gigabyte each).
    """
    with alone(ENVIRONMENTS / f"env-{stack}.lock"):
        return _environment(session, stack)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time: of two that begin together, one makes the environment and the other finds it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _environment(session: nox.Session, stack: str) -> Path:
    lock_file, folder = LOCKS / f"{stack}.txt", ENVIRONMENTS / f"env-{stack}"
    bin_, stamp = folder / "bin", folder / "installed.sha256"
    python = str(bin_ / "python")
    parts = (lock_file, ROOT / "pyproject.toml", ROOT / PLUGIN / "pyproject.toml")
    wanted = hashlib.sha256(sys.version.encode() + b"".join(part.read_bytes() for part in parts)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return bin_
    session.run(sys.executable, "-m", "venv", "--clear", str(folder), external=True)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    session.run(*pip, torch_of(lock_file), external=True)
    session.run(*pip, "--no-deps", "--require-hashes", "-r", str(lock_file), external=True)
    session.run(*pip, "--no-deps", "-e", ".", "-e", PLUGIN, external=True)
    stamp.write_text(wanted)
    return bin_


def torch_of(lock_file: Path) -> str:
    """It is installed first and with what it depends on.

    pip's settings decide between a CPU and a CUDA build (4 GB of libraries); with --require-hashes pip would always
    take the index's.
    """
    torch = re.search(r"^torch==\S+", lock_file.read_text(), re.MULTILINE)
    assert torch, lock_file
    return torch[0].rstrip("\\ ")


def run_in(session: nox.Session, stack: str, command: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run a command of the stack's environment."""
    session.run(str(environment(session, stack) / command), *arguments, env=env, external=True)


def selected_tests(session: nox.Session, layer: str, arguments: Sequence[str]) -> list[str]:
    """What pytest is told: cases of the matrix that come first become their tests, the rest is pytest's own."""
    rest = list(arguments)
    cases = []
    while rest and CASE_ID.fullmatch(rest[0]) and not Path(rest[0]).exists():
        cases.append(rest.pop(0))
    report = [f"--junitxml={JUNIT / layer}.xml"]
    if cases:
        grpo = str(environment(session, "core") / "grpo")
        printed = session.run(grpo, "matrix", "tests", layer, *cases, external=True, silent=True)
        return [*report, *json.loads(str(printed)), *rest]
    return [*report, *(rest or [f"tests/{layer}"])]


def run_unit(session: nox.Session, arguments: Sequence[str] = ()) -> None:
    run_in(session, "core", "pytest", "-n", "2", *selected_tests(session, "unit", arguments), env=ONE_THREAD)


def run_functional(session: nox.Session, arguments: Sequence[str] = ()) -> None:
    selected = selected_tests(session, "functional", arguments)
    run_in(session, "cpu", "pytest", "-n", "2", "--dist", "loadgroup", *selected, env=ONE_THREAD)


def run_plugin(session: nox.Session, arguments: Sequence[str] = ()) -> None:
    settings = ["-c", f"{PLUGIN}/pyproject.toml", "--rootdir", PLUGIN]
    run_in(session, "core", "pytest", "-n", "2", *settings, *(arguments or [f"{PLUGIN}/tests"]), env=ONE_THREAD)


def run_lint(session: nox.Session) -> None:
    run_in(session, "core", "ruff", "format", "--check", ".")
    run_in(session, "core", "ruff", "check", ".")
    run_in(session, "core", "mypy")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Format, lint and type checks (ruff, mypy strict)."""
    run_lint(session)


@nox.session(venv_backend="none")
def unit(session: nox.Session) -> None:
    """Unit tests: no Ray, no vLLM, no GPU. `-- CASE ...` runs these cases of the matrix; the rest goes to pytest."""
    run_unit(session, session.posargs)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """Unit tests on each Python that the package allows, or on one: `nox -s pythons-3.13`. Arguments go to pytest.

    nox finds those that are installed; each has an environment of its own. `unit` runs on the Python of nox itself.
    """
    lock_file = LOCKS / "core.txt"
    session.install(torch_of(lock_file))
    session.install("--no-deps", "--require-hashes", "-r", str(lock_file))
    session.install("--no-deps", "-e", ".", "-e", PLUGIN)
    report = f"--junitxml={JUNIT / f'unit-{session.python}.xml'}"
    session.run("pytest", "-n", "2", report, *(session.posargs or ["tests/unit"]), env=ONE_THREAD)


@nox.session(venv_backend="none")
def plugin(session: nox.Session) -> None:
    """The tests of slurm-pytest-plugin, a distribution of its own. Arguments go to pytest."""
    run_plugin(session, session.posargs)


@nox.session(venv_backend="none")
def functional(session: nox.Session) -> None:
    """Functional tests on the CPU: real vLLM, Ray, Megatron (installs 2.7 GB). `-- CASE ...` runs these cases."""
    run_functional(session, session.posargs)


@nox.session(venv_backend="none")
def gate(session: nox.Session) -> None:
    """What a change must pass: lint, checks, unit tests, the plugin's, and the functional cases that it needs.

    `-- --base BRANCH` says what the change is against (else GATE_BASE, else main); where it is unknown, all cases run.
    `--only PART` and `--without PART` choose among lint, checks, unit, plugin, functional; `--shard 1/3` takes a part
    of the functional cases.
    """
    options = gate_options(session.posargs)
    chosen = [part for part in options.only or GATE_PARTS if part not in options.without]
    if "lint" in chosen:
        run_lint(session)
    if "checks" in chosen:
        run_in(session, "core", "python", "-m", "ci.gate", "checks")
    if "unit" in chosen:
        run_unit(session)
    if "plugin" in chosen:
        run_plugin(session)
    if "functional" in chosen:
        report = JUNIT / f"functional-{options.shard.partition('/')[0]}"
        python = str(environment(session, "core") / "python")
        select = ("-m", "ci.gate", "select", "--base", options.base, "--shard", options.shard, "--report", str(report))
        printed = session.run(python, *select, external=True, silent=True, stderr=None)
        cases = json.loads(str(printed))
        if cases:
            run_functional(session, [*cases, f"--junitxml={report / 'functional.xml'}"])


def gate_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s gate --")
    parser.add_argument("--base", default=os.environ.get("GATE_BASE") or "main")
    parser.add_argument("--only", nargs="+", choices=GATE_PARTS)
    parser.add_argument("--without", nargs="+", choices=GATE_PARTS, default=[])
    parser.add_argument("--shard", default="1/1", metavar="NUMBER/COUNT")
    return parser.parse_args(arguments)


@nox.session(venv_backend="none")
def emit(session: nox.Session) -> None:
    """Write the pipelines of GitHub, GitLab and Buildkite, and the stacks' versions, from the matrix and the locks."""
    run_in(session, "core", "python", "-m", "ci.emit")


@nox.session
def pipelines(session: nox.Session) -> None:
    """Hold the written pipelines against the schemas of GitHub, GitLab and Buildkite that the checker brings along."""
    session.install("check-jsonschema==0.39.0")
    for system, pattern in (
        ("github-workflows", ".github/workflows/*.yml"),
        ("gitlab-ci", ".gitlab-ci.yml"),
        ("buildkite", ".buildkite/*.yml"),
    ):
        files = sorted(map(str, ROOT.glob(pattern)))
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{system}", *files)


@nox.session
def newest(session: nox.Session) -> None:
    """Unit and functional tests on the newest versions that the package allows, in an environment of their own."""
    session.install("--upgrade", "-e", ".[cpu,megatron,data,tasks,test]")
    session.run("pytest", "-n", "2", "--dist", "loadgroup", *(session.posargs or ["tests/unit", "tests/functional"]),
                env=ONE_THREAD)  # fmt: skip


@nox.session
def drift(session: nox.Session) -> None:
    """Say what changed when, in the history of verdicts; never fails because of it. Arguments go to ci/drift.py."""
    session.install("--require-hashes", "-r", "ci/locks/drift.txt")
    session.run("python", "ci/drift.py", *session.posargs)


@nox.session(venv_backend="none")
def report(session: nox.Session) -> None:
    """Draw the whole matrix as one HTML page and as Markdown, in runs/report. Arguments go to grpo matrix report."""
    run_in(session, "core", "grpo", "matrix", "report", *session.posargs)


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """List the cases of the test matrix; `-- explain CASE` shows one, `-- schema` writes JSON Schemas for editors."""
    run_in(session, "core", "grpo", "matrix", *(session.posargs or ["list"]))


@nox.session(venv_backend="none")
def accept(session: nox.Session) -> None:
    """Make judged runs the reference of their case: `-- RUN_DIR [RUN_DIR ...]`."""
    run_in(session, "core", "grpo", "accept", *session.posargs)


@nox.session(venv_backend="none")
def rebase(session: nox.Session) -> None:
    """Propose new references after a change of stack or image: `-- OLD NEW`, folders of runs made in turn."""
    run_in(session, "core", "grpo", "rebase", *session.posargs)


def slurm_can_be_installed(session: nox.Session) -> bool:
    """Whether its daemons are here, or apt-get finds them."""
    if all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch", "slurmdbd", "mariadbd"))):
        return True
    session.run("apt-get", "update", "-qq", external=True, silent=True, success_codes=[0, 100])
    found = session.run(
        "apt-get", "install", "--simulate", "-qq", "munge", "slurmctld", "slurmd", "slurm-client", "slurmdbd",
        "mariadb-server", external=True, silent=True, success_codes=[0, 100],
    )  # fmt: skip
    return "Inst " in str(found)  # of those that are not here; it installs all of them or none


@nox.session(venv_backend="none")
def slurm(session: nox.Session) -> None:
    """Cases of the matrix as jobs of a real Slurm on this machine (root, Debian or Ubuntu). Arguments go to pytest.

    `-- -m "" tests/slurm` runs all of them, those of the night too.
    """
    missing = [
        *(["root, as which Slurm's daemons start jobs"] if os.geteuid() != 0 else []),
        *(["apt-get, by which Slurm is installed (Debian, Ubuntu)"] if shutil.which("apt-get") is None else []),
    ]
    if not missing and not slurm_can_be_installed(session):
        missing.append("package of Slurm within reach of apt-get")
    if missing:
        message = f"NO JOB HAS RUN ON A SLURM: there is no {' and no '.join(missing)}"
        (session.error if session.posargs else session.skip)(message)
    # In the order of the files: what waits for the clock is submitted first and looked at last.
    report = f"--junitxml={JUNIT / 'slurm'}.xml"
    arguments = session.posargs or ["tests/slurm"]
    run_in(session, "cpu", "pytest", "-p", "no:randomly", report, *arguments, env=ONE_THREAD)


@nox.session(venv_backend="none")
def cluster(session: nox.Session) -> None:
    """One case of the matrix as a job, judged: `-- 70b-megatron --partition mine`. On Slurm, or here if it fits.

    `--dry-run` writes its script and says what it may cost; `--from-run DIR` judges what an earlier run left.
    `-- twins` runs the twins of all of the cluster's cases on this machine, one after the other (half an hour).
    """
    if not session.posargs or session.posargs[0].startswith("-"):
        session.error("which case? nox -s cluster -- CASE [--partition P] [--dry-run]; nox -s matrix lists them")
    case, *options = session.posargs
    if case == "twins":
        twins = re.findall(r"^  (tiny-\S+):$", (ROOT / "matrices" / "tiny_cluster.yaml").read_text(), re.MULTILINE)
        cases = [part for twin in twins for part in ("--case", twin)]
        here = ("--executor", "local", "--max-jobs", "1", "--poll", "1", f"--junitxml={JUNIT / 'twins'}.xml")
        run_in(session, "cpu", "pytest", *here, *cases, *options, "tests/cluster", env=ONE_THREAD)
        return
    runs_nothing = any(option.startswith(("--dry-run", "--from-run")) for option in options)
    stack = "core" if runs_nothing else "cpu" if case.startswith("tiny-") else "cuda"
    run_in(session, stack, "pytest", "--case", case, *options, "tests/cluster")


@nox.session(venv_backend="none")
def train(session: nox.Session) -> None:
    """The main job: a tiny model learns from random weights on this CPU. Arguments go to grpo train."""
    arguments = ["train", "tiny", "--fresh", "--require-accuracy", "0.9", "logger.log_dir=runs/train", *session.posargs]
    run_in(session, "core", "grpo", *arguments)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Speed against something else in the same go: `-- peers` (TRL, two environments), `-- checkpoint` (the disk).

    `-- sizing` says what grows with the number of nodes and ranks.
    """
    if session.posargs[:1] == ["checkpoint"]:
        run_in(session, "core", "python", "-m", "benchmarks.checkpoint", *session.posargs[1:])
        return
    if session.posargs[:1] == ["sizing"]:
        run_in(session, "cpu", "python", "-m", "benchmarks.sizing", *session.posargs[1:])
        return
    if session.posargs[:1] != ["peers"]:
        session.error("which benchmark? there are: peers, checkpoint, sizing")
    ours, theirs = (environment(session, stack) / "python" for stack in ("cpu", "peers"))
    run_in(
        session,
        "cpu",
        "python",
        "-m",
        "benchmarks.peers",
        "--ours",
        str(ours),
        "--theirs",
        str(theirs),
        *session.posargs[1:],
    )


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Tests of the kernels on a GPU; then a case, judged: `-- CASE [--partition P]`, else workers' speed and memory.

    `-- tests` runs the tests alone. Without a case, arguments go to benchmarks.gpu, which measures against bare loops
    and the plan.
    """
    if not Path("/dev/nvidiactl").exists():
        session.error("NOTHING HAS RUN: there is no NVIDIA GPU on this machine (no /dev/nvidiactl)")
    arguments = session.posargs
    run_in(session, "cuda", "pytest", f"--junitxml={JUNIT / 'gpu'}.xml", "tests/gpu")
    if arguments[:1] == ["tests"]:
        return
    if arguments and CASE_ID.fullmatch(arguments[0]):
        run_in(session, "cuda", "grpo", "matrix", "run", *arguments)
        return
    out = () if any(each.startswith("--out") for each in arguments) else ("--out", "runs/gpu")
    run_in(session, "cuda", "python", "-m", "benchmarks.gpu", *out, *arguments)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Write what is generated: docs/configuration.md and the table of docs/planning.md."""
    page = "from grpo.config.reference import markdown; print(markdown(), end='')"
    with (ROOT / "docs" / "configuration.md").open("w") as out:
        session.run(str(environment(session, "core") / "python"), "-c", page, external=True, stdout=out)
    session.run(str(environment(session, "core") / "python"), "-m", "benchmarks.planned_rows", external=True)


@nox.session
def lock(session: nox.Session) -> None:
    """Regenerate the hashed locks under ci/locks, one a stack. `-- --upgrade` takes the newest versions."""
    session.install("uv")
    compile_ = ["uv", "pip", "compile", "--generate-hashes", "--quiet", "--custom-compile-command", "nox -s lock"]
    universal = ["--universal", "--python-version", "3.11", "--override", "ci/locks/overrides.txt"]
    extras = {
        "cpu": ["cpu", "megatron", "data", "tasks", "test"],
        "core": ["test", "lint"],
        "cuda": ["vllm", "megatron", "data", "tasks", "test"],
    }
    for stack, names in extras.items():
        wanted = [part for name in names for part in ("--extra", name)]
        platform = (
            ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28"] if stack == "cuda" else universal
        )
        same_versions = ["--constraint", "ci/locks/cpu.txt"] if stack == "core" else []
        output = ["--output-file", f"ci/locks/{stack}.txt", "pyproject.toml"]
        session.run(*compile_, *platform, *wanted, *same_versions, *session.posargs, *output)
    for name in ("peers", "drift"):
        output = ["--output-file", f"ci/locks/{name}.txt", f"ci/locks/{name}.in"]
        session.run(*compile_, *universal, *session.posargs, *output)
    run_in(session, "core", "python", "-m", "ci.stacks")
