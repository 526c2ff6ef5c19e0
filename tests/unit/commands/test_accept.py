import json

import pytest

from grpo.matrix.load import load_matrix
from tests.support.case_runs import case_run, small_matrix

NAMED = ("--case", "small", "--partition", "cpu-local")


@pytest.fixture
def matrices(tmp_path):
    return small_matrix(tmp_path / "matrices")


@pytest.fixture
def made(matrices, tmp_path):
    matrix = load_matrix(matrices)
    return lambda name, refit=14.0, **changes: case_run(matrix, tmp_path / name, {"refit": refit}, **changes)


def test_from_no_reference_to_a_gate_that_finds_a_slow_phase(run, made, matrices):
    where = ("--matrices", matrices)
    runs = [made(f"run{at}", 14.0 + 0.01 * at) for at in range(5)]
    code, out, err = run("judge", runs[0], *NAMED, *where)
    assert (code, "no reference yet" in out) == (2, True)
    assert f"nox -s accept -- {runs[0]}" in err
    assert (runs[0] / "reference.yaml").read_text().startswith("# small on cpu-local, by this run alone")
    code, out, _ = run("accept", *runs, *NAMED, "--dry-run", *where)
    assert (code, "nothing is written" in out) == (0, True)
    code, out, _ = run("accept", *runs, *NAMED, *where)
    assert (code, "written: " in out) == (0, True)
    reference = load_matrix(matrices).reference("cpu-local", "small")
    assert reference.values["timing/refit"].value == 14.02
    assert run("judge", runs[1], *NAMED, *where)[0] == 0
    slow = made("slow", 16.0)
    code, out, _ = run("judge", slow, *NAMED, *where)
    assert code == 1
    assert "refit" in out
    asked = json.loads((slow / "verdict.json").read_text())["rerun"]
    assert (asked["rule"], asked["runs"]) == (4, 2)
    code, out, _ = run("judge", slow, runs[2], runs[3], *NAMED, *where)
    assert (code, "median of 3 runs, some on the same nodes" in " ".join(out.split())) == (0, True)


def test_the_case_is_that_by_which_the_runs_were_judged(run, made, matrices):
    runs = [made(f"run{at}") for at in range(3)]
    code, _, err = run("accept", *runs, "--matrices", matrices)
    assert (code, "was not judged yet" in err) == (2, True)
    for one in runs:
        run("judge", one, *NAMED, "--matrices", matrices)
    code, out, _ = run("accept", *runs, "--matrices", matrices)
    assert (code, "provisional: 3 runs" in out) == (0, True)
    code, out, _ = run("accept", *runs, "--matrices", matrices)
    assert (code, "nothing moves" in out) == (0, True)


def test_too_few_runs(run, made, matrices):
    code, _, err = run("accept", made("a"), made("b"), *NAMED, "--matrices", matrices)
    assert code == 2
    assert "2 runs: a reference needs 3" in err


def test_rebase(run, made, matrices):
    for at in range(3):
        made(f"old/r{at}", started=2.0 * at)
        made(f"new/r{at}", 15.0, started=2.0 * at + 1, stack={"torch": "9.9"})
    folders = (matrices.parent / "old", matrices.parent / "new")
    code, out, _ = run("rebase", *folders, *NAMED, "--matrices", matrices)
    assert (code, "nothing is written" in out, "-> 9.9" in out) == (0, True, True)
    code, out, _ = run("rebase", *folders, *NAMED, "--accept", "--matrices", matrices)
    assert code == 0
    assert load_matrix(matrices).reference("cpu-local", "small").source.stack.torch == "9.9"
    code, _, err = run("rebase", matrices, matrices, *NAMED, "--matrices", matrices)
    assert (code, "no run directories" in err) == (2, True)
