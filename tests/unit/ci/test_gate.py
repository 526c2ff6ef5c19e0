"""Shards, dry runs, and files that must be fresh."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ci import gate
from ci.stacks import stale_stacks, versions_of
from grpo.matrix.load import load_matrix

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrices")


def test_every_job_script_renders(tmp_path):
    assert list(gate.dry_runs(MATRIX, tmp_path)) == []
    scripts = {path.parents[2].name for path in tmp_path.rglob("job.sh")}
    assert scripts == {f"{case.id}-{name}" for case in MATRIX.cases.values() for name in case.partitions}


def test_a_script_that_cannot_be_rendered_or_read_is_told(tmp_path, monkeypatch):
    case = MATRIX.case("tiny-hf")
    late = case.model_copy(update={"partitions": ["h100-80g"], "time_limit": "09:00:00"})
    assert "allows 04:00:00" in next(gate.dry_runs(replace(MATRIX, cases={"tiny-hf": late}), tmp_path / "a"))

    def broken(job, folder):
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text("if then")

    monkeypatch.setattr(gate, "write_dry", broken)
    one = replace(MATRIX, cases={"tiny-hf": case})
    assert "bash cannot read its job script" in next(gate.dry_runs(one, tmp_path / "b"))


def test_shards_tell_what_is_selected_and_share_it(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "changed_files", lambda root, base: ["README.md"] if base == "main" else None)
    everything = [case.id for case in MATRIX.all.values() if case.layer == "functional" and case.cadence == "pr"]
    told = [gate.select_shard(MATRIX, "", (number, 2), tmp_path / str(number)) for number in (1, 2)]
    assert sorted(told[0] + told[1]) == sorted(everything)
    written = [json.loads((tmp_path / str(number) / "selected.json").read_text()) for number in (1, 2)]
    assert written[0]["selected"] == written[1]["selected"] == everything
    assert [one["cases"] for one in written] == told
    assert gate.select_shard(MATRIX, "main", (1, 1), tmp_path / "3") == ["tiny-hf"]
    assert gate.select_shard(MATRIX, "gone", (1, 1), tmp_path / "4") == told_all(everything)


def told_all(ids):
    return gate.shards([MATRIX.all[one] for one in ids], 1)[0]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "-1/2"])
def test_a_shard_is_a_number_of_a_count(text):
    with pytest.raises(SystemExit):
        gate.main(["select", "--shard", text, "--report", "x"])


def test_the_stacks_versions_are_those_of_the_locks():
    assert stale_stacks(ROOT, MATRIX) == [], "run: nox -s emit"
    for stack in MATRIX.stacks.values():
        assert (stack.lock is None) == stack.reports_only
        if stack.lock is not None:
            assert stack.versions == versions_of((ROOT / stack.lock).read_text())
            assert stack.versions["torch"]
    lock = "torch==2.1 \\\n    --hash=x\nnumpy==1.0 ; python_version < '3.12' \\\nnumpy==2.0 ; y\nother==3\n"
    assert versions_of(lock) == {"torch": "2.1", "numpy": "1.0, 2.0"}
    changed = {**MATRIX.stacks, "cpu": MATRIX.stacks["cpu"].model_copy(update={"lock": "ci/locks/core.txt"})}
    assert stale_stacks(ROOT, replace(MATRIX, stacks=changed)) == ["cpu"]
