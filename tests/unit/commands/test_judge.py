import json

import pytest

from grpo.matrix.load import find_matrices, load_matrix
from grpo.matrix.resolve import resolve_case
from tests.support.synthetic_run import write_synthetic_run

ROW = "total=178,policy_training=31,refit=26,generation=87,logprobs=20"
CASE = ("--case", "70b-megatron", "--partition", "h100-80g")


def test_a_bare_row_is_judged_and_the_exit_code_is_the_verdict(run):
    code, out, _ = run("judge", "--values", ROW, *CASE)
    assert code == 1
    assert "refit +12 s, other +11 s (3 -> 14)" in " ".join(out.split())
    assert run("judge", "--values", "total=147,policy_training=28,refit=14,generation=84,logprobs=18", *CASE)[0] == 0
    assert run("judge", "--values", ROW, "--case", "8b-megatron", "--partition", "h200-141g")[0] == 2


def test_formats(run):
    assert json.loads(run("judge", "--values", ROW, *CASE, "--format", "json")[1])["failure"] == "regression"
    assert run("judge", "--values", ROW, *CASE, "--format", "junit")[1].startswith("<?xml")
    assert run("judge", "--values", ROW, *CASE, "--format", "markdown")[1].startswith(
        "### 70b-megatron on h100-80g: fail"
    )


def test_faster_fails_a_release_alone(run):
    row = "total=110,policy_training=20,refit=10,generation=60,logprobs=17"
    assert run("judge", "--values", row, *CASE)[0] == 0
    assert run("judge", "--values", row, *CASE, "--release")[0] == 1


def test_a_run_directory_is_judged(run, tmp_path):
    directory = write_synthetic_run(tmp_path / "run", steps=30)
    code, out, _ = run("judge", directory, "--case", "tiny-hf", "--partition", "cpu-local")
    assert code == 2
    assert "it may be of another case" in " ".join(out.split())
    config = resolve_case(load_matrix(find_matrices()).case("tiny-hf")).resolved.to_yaml()
    (directory / "config.yaml").write_text(config)
    code, out, _ = run("judge", directory, "--case", "tiny-hf", "--partition", "cpu-local")
    assert code == 1
    assert "train/raw_reward is missing throughout" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["judge"], "what is to be judged?"),
        (["judge", "somewhere", "--values", ROW, *CASE], "what is to be judged?"),
        (["judge", "--values", ROW], "against what?"),
        (["judge", "--values", ROW, "--case", "70b-megatro", "--partition", "h100-80g"], "did you mean 70b-megatron?"),
        (["judge", "--values", ROW, "--case", "70b-megatron", "--partition", "h100-80"], "did you mean h100-80g?"),
        (["judge", "--values", ROW, "--case", "70b-megatron", "--partition", "cpu-local"], "is for h100-80g, not for"),
        (["judge", "--values", "totl=1", *CASE], "unknown column totl; did you mean total?"),
        (["judge", "nowhere", *CASE], "nowhere is no run directory"),
        (["judge", "--values", ROW, *CASE, "--matrices", "nowhere"], "no matrix at nowhere"),
        (["matrix", "explain", "tiny"], "there is no case 'tiny'"),
        (["matrix", "submit", "tiny-hf", "--partition", "h100-80g"], "is for cpu-local, not for"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, message):
    code, _, err = run(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err


def test_the_cases_are_listed_and_explained(run):
    code, out, _ = run("matrix", "list")
    assert code == 0
    assert "tiny-objective-gspo-dr-grpo" in out
    code, out, _ = run("matrix", "explain", "70b-megatron")
    assert code == 0
    assert "pipeline_model_parallel_size: 4" in out
