"""Cases on this machine whose trainer does not end well; the functional layer runs real ones."""

import sys
from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix import here
from grpo.matrix.here import run_here, run_until_decided
from grpo.matrix.load import load_matrix
from grpo.matrix.run import judge_directory
from tests.support.case_runs import case_run, small_matrix

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
CASE = MATRIX.case("tiny-objective-cispo-dr-grpo")


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A trainer of our own in the place of Python."""

    def put(text):
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\n{text}")
        program.chmod(0o755)
        monkeypatch.setattr(here.sys, "executable", str(program))

    return put


def test_a_trainer_that_fails_is_a_crash_whose_output_is_kept(tmp_path, trainer):
    trainer("import sys; print('no such luck'); sys.exit(3)")
    verdict = run_here(MATRIX, CASE, "cpu-local", tmp_path / "folder")
    assert (verdict.outcome, verdict.failure) == ("fail", "crash")
    assert "no such luck" in (tmp_path / "folder" / "trainer.log").read_text()


def test_a_trainer_that_is_killed_is_no_crash_of_its_own(tmp_path, trainer):
    trainer("import os; os.kill(os.getpid(), 9)")
    assert run_here(MATRIX, CASE, "cpu-local", tmp_path / "folder").failure == "out_of_memory"


@pytest.mark.parametrize("deaf", [False, True])
def test_one_that_does_not_end_is_ended(tmp_path, trainer, monkeypatch, deaf):
    monkeypatch.setattr(here, "SAVING_SECONDS", 1.0)
    trainer(
        f"import signal, time\nif {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()\ntime.sleep(60)"
    )
    case = CASE.model_copy(update={"time_limit": "00:00:01"})
    verdict = run_here(MATRIX, case, "cpu-local", tmp_path / "folder")
    assert (verdict.outcome, verdict.failure) == ("fail", "timeout")


def test_what_cannot_be_run_here(tmp_path):
    with pytest.raises(MatrixError, match="has 8 nodes: grpo matrix submit"):
        run_here(MATRIX, MATRIX.case("70b-dtensor"), "h100-80g", tmp_path)
    with pytest.raises(MatrixError, match="is for cpu-local, not for the partition h100-80g"):
        run_here(MATRIX, CASE, "h100-80g", tmp_path)
    (tmp_path / "x").write_text("")
    with pytest.raises(MatrixError, match="is not empty"):
        run_here(MATRIX, CASE, "cpu-local", tmp_path)
    broken = CASE.model_copy(update={"overrides": ["grpo.sed=1"]})
    with pytest.raises(MatrixError, match=r"did you mean grpo.seed\?"):
        run_here(MATRIX, broken, "cpu-local", tmp_path / "y")
    assert not (tmp_path / "y").exists()


PUBLISHED = """\
schema_version: 2
source: {kind: published, title: a table, settings: some}
values:
  timing/total: {value: 147, unit: s}
  timing/refit: {value: 14, unit: s}
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A case whose runs here take so many seconds for their refits, 14 being the reference's."""

    def decided(*refits, **changes):
        folder = small_matrix(tmp_path / "matrices")
        (folder / "references" / "cpu-local" / "small.yaml").write_text(PUBLISHED)
        matrix, left, said = load_matrix(folder), list(refits), []
        case = matrix.case("small").model_copy(update=changes)

        def one(matrix, case, partition, folder):
            run = case_run(matrix, folder / "run", {"refit": left.pop(0)})
            return judge_directory(matrix, case, partition, run)

        monkeypatch.setattr(here, "run_here", one)
        verdict = run_until_decided(matrix, case, "cpu-local", tmp_path / "runs" / "small", say=said.append)
        return verdict, said, sorted(path.name for path in (tmp_path / "runs").iterdir())

    return decided


def test_within_its_band_one_run_decides(small):
    verdict, said, folders = small(14.0)
    assert (verdict.outcome, said, folders) == ("pass", [], ["small"])


def test_outside_its_band_the_median_of_three_decides(small):
    verdict, said, folders = small(60.0, 14.0, 15.0)
    assert (verdict.outcome, folders) == ("pass", ["small", "small-again-1", "small-again-2"])
    assert len(said) == 2
    assert "here on the same node" in said[0]
