import io
import json
import math
import random

import pytest
from rich.console import Console

from grpo.errors import MatrixError
from grpo.matrix.compare.matched import Side, matched
from grpo.matrix.compare.show import matched_sheet
from grpo.matrix.show.sheet import sheet_markdown, sheet_table


def run(name, *, per_token=1e-4, data=0.5, other=0.5, steps=40, seed=0, noise=0.0, outside=60.0, offset=1.0):
    """Steps of 90,000 to 110,000 tokens, whose training is proportional to them."""
    rng, records = random.Random(seed), []
    for _ in range(steps):
        tokens = rng.uniform(90_000, 110_000) * offset
        training = tokens * per_token * (1 + rng.gauss(0, noise))
        phases = {
            "policy_training": training,
            "logprobs": 0.3 * training,
            "generation": 20.0,
            "refit": 1.0,
            "data": data,
        }
        records.append(
            {f"timing/{phase}": seconds for phase, seconds in phases.items()}
            | {
                "train/computed_tokens": tokens,
                "timing/refit/transfer": 0.4,
                "timing/other": other,
                "timing/total": sum(phases.values()) + other,
            }
        )
    return Side(name, records, outside)


def rows(result):
    return {row.name: row for row in result.rows}


def test_the_compute_ratio_is_that_of_equal_tokens_though_no_step_is_the_same():
    result = matched(run("bare"), run("ours", per_token=1.2e-4, seed=1, steps=60))
    assert result.pairs > 30
    assert result.steps == (40, 60)
    assert abs(result.token_difference) < 0.005
    assert math.isclose(result.compute.ratio, 1.2, rel_tol=0.006)
    interval = result.compute.ratio_interval
    assert interval.low < 1.2 * (1 + result.token_difference) < interval.high or math.isclose(
        result.compute.ratio, 1.2 * (1 + result.token_difference), rel_tol=1e-3
    )
    assert result.worst_difference <= 0.011


def test_each_overhead_is_apart_and_sums_to_the_total():
    result = matched(run("bare", data=0.1, other=0.0), run("ours", data=3.0, other=2.0, seed=1))
    by_name = rows(result)
    assert math.isclose(by_name["timing/data"].difference, 2.9)
    assert by_name["timing/data"].kind == "overhead"
    assert math.isclose(by_name["timing/other"].difference, 2.0)
    assert by_name["timing/other"].ratio is None
    assert by_name["timing/refit/transfer"].kind == "part"
    whole = sum(row.difference for row in result.rows if row.kind in ("work", "overhead"))
    assert math.isclose(whole, by_name["total"].difference, abs_tol=1e-9)
    assert result.overhead_share[1] > result.overhead_share[0]
    total = by_name["total"].second
    assert math.isclose(result.overhead_share[1], 5.0 / total, rel_tol=1e-6)


def test_a_run_against_itself():
    side = run("a")
    result = matched(side, side)
    assert (result.pairs, result.token_difference, result.worst_difference) == (40, 0.0, 0.0)
    assert (result.compute.ratio, result.compute.ratio_interval.low, result.compute.ratio_interval.high) == (1, 1, 1)


def test_the_interval_covers_the_ratio_about_as_often_as_it_says():
    # The pairing's own offset is taken out, as it is reported beside the ratio.
    hits = 0
    for seed in range(60):
        result = matched(run("a", noise=0.05, seed=2 * seed), run("b", noise=0.05, seed=2 * seed + 1), tolerance=0.02)
        interval = result.compute.ratio_interval
        hits += interval.low <= 1 + result.token_difference <= interval.high
    assert 50 <= hits <= 60


def test_steps_of_other_sizes_are_not_paired():
    result = matched(run("a"), run("b", offset=1.1, seed=1))
    assert 0 < result.pairs < 30
    with pytest.raises(MatrixError, match="no steps to pair: a computed 9"):
        matched(run("a"), run("b", offset=2.0))


def test_a_bare_loop_that_only_trains_is_compared_by_its_training():
    bare = run("bare")
    for record in bare.records:
        record["timing/logprobs"] = record["timing/generation"] = 0.0
    result = matched(bare, run("ours"))
    assert math.isclose(result.compute.first, rows(result)["timing/policy_training"].first)
    assert "compute is policy training;" in matched_sheet(result).lines[1]


def test_what_cannot_be_compared():
    silent = run("a")
    del silent.records[3]["train/computed_tokens"]
    with pytest.raises(MatrixError, match="a: 1 of 40 steps do not say"):
        matched(silent, run("b"))
    idle = run("a")
    for record in idle.records:
        record["timing/policy_training"] = record["timing/logprobs"] = 0.0
    with pytest.raises(MatrixError, match="no compute"):
        matched(idle, run("b"))


def test_as_table_markdown_and_json():
    result = matched(run("bare", steps=30, outside=3.0), run("ours", per_token=1.1e-4, data=2.0, seed=1, steps=30))
    sheet = matched_sheet(result)
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(sheet_table(sheet))
    assert "outside the steps, once a run (set-up and end): 3 s and 60 s" in console.file.getvalue()
    markdown = sheet_markdown(sheet)
    assert markdown.startswith("### ours takes 1.")
    assert "| policy training | work |" in markdown
    plain = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (plain["schema_version"], plain["pairs"]) == (1, result.pairs)
    few = matched_sheet(matched(run("a", steps=6), run("b", steps=6)))
    assert "fewer than 10 pairs" in few.lines[-1]
