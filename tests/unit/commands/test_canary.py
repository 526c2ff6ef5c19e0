import json

import pytest

from grpo.matrix.load import find_matrices
from tests.support.matrix import canary


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(
        "grpo.matrix.canary.measure.measure", lambda *_, **__: {"time": 0.0, "seconds": 1.0, **canary(matmul=700.0)}
    )


def test_it_is_written_and_shown(run, measured, tmp_path):
    out = tmp_path / "canary.json"
    code, text, _ = run("canary", "--out", out)
    assert code == 0
    assert json.loads(out.read_text())["nodes"][0]["gpus"][0]["bf16_matmul_tflops"] == 700.0
    assert "canary of 1 nodes" in text
    assert run("canary", "--out", out, "--quiet")[1] == ""
    assert json.loads(run("canary", "--out", out, "--format", "json")[1])["device"] == "cuda"


def test_below_the_partitions_rates_is_exit_code_1(run, measured, tmp_path, monkeypatch):
    matrices = tmp_path / "matrices"
    (matrices / "partitions").mkdir(parents=True)
    (matrices / "budgets.yaml").write_text((find_matrices() / "budgets.yaml").read_text())
    site = (
        "schema_version: 1\ndescription: here\ngpus_per_node: 8\nenvironment: {kind: venv}\n"
        "gpu: {name: H100, memory_gib: 80, bf16_dense_tflops: 989, memory_gb_per_s: 3352}\n"
        "canary: {bf16_matmul_tflops: %s}\n"
    )
    for rate, expected in ((800, 1), (710, 0)):
        (matrices / "partitions" / "here.yaml").write_text(site % rate)
        code, text, _ = run(
            "canary", "--out", tmp_path / "c.json", "--partition", "here", "--matrices", matrices,
            "--bad", tmp_path / f"bad-{rate}",
        )  # fmt: skip
        assert code == expected
        assert ("88 % of the partition's 800" in " ".join(text.split())) == bool(expected)
    # What a job script blames, and nothing where nothing is wrong.
    assert (tmp_path / "bad-800").read_text() == "node0\n"
    assert not (tmp_path / "bad-710").exists()
