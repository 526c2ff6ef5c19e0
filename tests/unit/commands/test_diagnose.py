import json

import pytest

from grpo.matrix.load import load_matrix
from tests.support.case_runs import case_run, small_matrix

MEGATRON = "total=178,policy_training=31,refit=26,generation=87,logprobs=20,generated_tokens=396"
DTENSOR = "total=266,policy_training=117,refit=20,generation=88,logprobs=29,generated_tokens=411"
ON = ("--partition", "h100-80g")


def test_the_question_of_the_report_is_answered_by_its_numbers(run):
    code, out, _ = run(
        "diagnose", "--values", MEGATRON, "--case", "70b-megatron", "--values", DTENSOR, "--case", "70b-dtensor", *ON
    )
    text = " ".join(out.split())
    assert code == 0
    # Refit is not twice as slow on both backends.
    assert "refit is 1.86x (+12 s) in 70b-megatron and 1.33x (+5 s) in 70b-dtensor" in text
    assert "policy training is 1.21x (117 s against 97 s, +20 s)" in text
    assert "not the GPUs' speed in matrix products" in text
    assert "other is 4.67x (14 s against 3 s, +11 s)" in text
    assert "DTensor passes through Python" in text
    assert "machine or software: not known" in text


def test_as_json(run):
    out = run("diagnose", "--values", MEGATRON, "--case", "70b-megatron", *ON, "--format", "json")[1]
    phases = json.loads(out)["diagnoses"][0]["phases"]
    assert {phase["phase"] for phase in phases if phase["slow"]} == {"refit", "other"}


def test_a_run_directory_finds_its_case_by_itself(run, tmp_path):
    matrices = small_matrix(tmp_path / "matrices")
    directory = case_run(load_matrix(matrices), tmp_path / "run", {"refit": 60.0})
    where = ("--partition", "cpu-local", "--matrices", matrices)
    code, out, _ = run("diagnose", directory, *where)
    assert (code, "no reference" in out) == (0, True)
    (matrices / "references/cpu-local/small.yaml").write_text(
        "schema_version: 2\nsource: {kind: published, title: a table, settings: some}\n"
        "values: {timing/total: {value: 147, unit: s}, timing/refit: {value: 14, unit: s}}\n"
    )
    code, out, _ = run("diagnose", directory, *where)
    assert (code, "refit is 4.29x (60 s against 14 s, +46 s)" in " ".join(out.split())) == (0, True)
    assert "no canary" in " ".join(out.split()) or "no rates" in " ".join(out.split())
    run("judge", directory, "--case", "small", *where)
    assert "refit is 4.29x" in " ".join(run("diagnose", directory, *where)[1].split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what is to be diagnosed?"),
        (["--values", MEGATRON, "--case", "70b-megatron"], "where was it?"),
        (["--values", MEGATRON, *ON], "1 x --values and 0 x --case"),
        (["--values", MEGATRON, "--case", "70b-megatro", *ON], "did you mean 70b-megatron"),
        (["runs/none", "--case", "a", "--case", "b", *ON], "give --case once"),
        (["runs/none", *ON], "no run directory"),
    ],
)
def test_what_cannot_be_diagnosed(run, arguments, message):
    code, _, err = run("diagnose", *arguments)
    assert code == 2
    assert message in " ".join(err.split())
