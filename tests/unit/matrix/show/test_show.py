"""Verdicts and listings as people and CI systems get them."""

import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from grpo.matrix.judge import judge_row, row_of
from grpo.matrix.load import load_matrix
from grpo.matrix.show.junit import verdicts_junit
from grpo.matrix.show.listing import case_table, explanation
from grpo.matrix.show.markdown import verdict_markdown
from grpo.matrix.show.table import verdict_table
from tests.support.matrix import evidence, measured, record, unmeasured, verdict

MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")


def rendered(renderable):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


@pytest.fixture
def failed():
    row = row_of("total=178,policy_training=31,refit=26,generation=87,logprobs=20")
    case = MATRIX.case("70b-megatron")
    return judge_row(row, case, MATRIX.reference("h100-80g", case.id), partition_name="h100-80g")


def test_table(failed, snapshot):
    assert rendered(verdict_table(failed)) == snapshot


def test_markdown(failed, snapshot):
    assert verdict_markdown(failed) == snapshot


def test_json_holds_everything_and_is_json(failed):
    data = json.loads(json.dumps(failed.to_json(), allow_nan=False))
    assert data["schema_version"] == 1
    assert (data["outcome"], data["failure"]) == ("fail", "regression")
    assert sum(share["seconds"] for share in data["attribution"]) == 31
    broken = verdict(evidence([record(1, **{"train/loss": float("nan")})]), reference=measured())
    json.dumps(broken.to_json(), allow_nan=False)


def test_junit_counts_not_judged_as_skipped(failed):
    suite = ET.fromstring(  # noqa: S314 - our own
        verdicts_junit([failed, verdict(reference=measured()), verdict(reference=unmeasured())])
    )
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["70b-megatron", "some-case", "some-case"]
    assert cases[0].find("failure").get("type") == "regression"
    assert cases[1].find("failure") is None
    assert "no reference yet" in cases[2].find("skipped").get("message")
    assert cases[0].find("properties/property[@name='timing/refit']").get("value") == "26.0"


def test_a_runs_steps_and_bounds_are_shown():
    text = rendered(verdict_table(verdict(reference=measured())))
    assert "20 steps judged, 5 of warm-up, 0 with a checkpoint or validation" in text
    assert "against the measured reference" in text


def test_the_list_has_every_id_whole():
    text = rendered(case_table(MATRIX, {}))
    assert all(case_id in text for case_id in MATRIX.all)


def test_an_explanation_has_origin_command_bands_and_configuration():
    text = rendered(explanation(MATRIX, MATRIX.case("70b-dtensor")))
    for part in (
        "matrices/cluster.yaml:",
        "grpo train grpo_math_70b",
        "64 train, 64 generate",
        "tensor 8",
        "192 GPU-hours",
    ):
        assert part in text
    assert "num_prompts_per_step: 64" in text
