import json
import math

import pytest

from grpo.errors import MatrixError
from grpo.matrix.judge import evidence_of, row_of
from grpo.telemetry.reader import read_run
from tests.support.synthetic_run import write_synthetic_run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("total", "write name=seconds"),
        ("total=", "expected a number"),
        ("total=nan", "expected a finite number"),
        ("total=1,total=2", "given twice"),
        ("total=1,refitt=2", "did you mean refit?"),
        ("", "write name=seconds"),
    ],
)
def test_rows_that_cannot_be_read(text, message):
    with pytest.raises(MatrixError, match=message.replace("?", r"\?")):
        row_of(text)


def test_a_row_may_have_spaces_and_decimals():
    assert row_of("total=1.5, logprobs = 2") == {"timing/total": 1.5, "timing/logprobs": 2.0}


def test_a_metric_that_is_no_number_is_none_that_passes(tmp_path):
    path = write_synthetic_run(tmp_path / "run", steps=2)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "step": 3, "train/loss": "low", "train/reward": true, "train/kl": null, ')
        file.write(f'"train/grad_norm": 1{"0" * 400}}}\n')
    last = evidence_of(read_run(path)).metrics[-1]
    assert math.isnan(last["train/loss"])
    assert math.isnan(last["train/reward"])
    assert math.isnan(last["train/grad_norm"])
    assert last["train/kl"] is None
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "train/loss": 1}\n')
    with pytest.raises(MatrixError, match="a line without a step"):
        evidence_of(read_run(path))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("nodes.json", {"nodes": ["a"]}, "nodes.json: nodes: expected a list of objects"),
        ("nodes.json", {"nodes": [{"host": "a", "gpus": ["H100"]}]}, "nodes.json: gpus: expected a list of objects"),
        ("nodes.json", {"nodes": 3}, "nodes.json: nodes"),
        ("canary.json", {"nodes": 5}, "canary.json: nodes"),
        ("canary.json", {"nccl": "ib"}, "canary.json: nccl: expected an object, not 'ib'"),
        ("environment.json", {"stack": []}, "environment.json: stack: expected an object"),
    ],
)
def test_files_that_no_run_writes_are_named(tmp_path, file, content, message):
    path = write_synthetic_run(tmp_path / "run", steps=1)
    (path / file).write_text(json.dumps({"schema_version": 1, **content}))
    with pytest.raises(MatrixError, match=message):
        evidence_of(read_run(path))


def test_what_is_taken_from_a_run_directory(tmp_path):
    run = read_run(write_synthetic_run(tmp_path / "run", steps=4, outcome="stopped"))
    seen = evidence_of(run)
    assert [record["step"] for record in seen.metrics] == [1, 2, 3, 4]
    assert seen.state == "stopped"
    assert seen.run == run.manifest.run_id
    assert seen.config["grpo"]["num_prompts_per_step"] == 32
    assert seen.stack["torch"]
    assert len(seen.nodes) == 1
