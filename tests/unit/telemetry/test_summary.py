import math
import statistics

import pytest

from grpo.telemetry.reader import read_run
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.summary import summarise
from tests.support.synthetic_run import write_synthetic_run


def make(path, lines, *, resume=None, **facts):
    options = {"name": "n", "config_yaml": "a: 1", "command": [], "facts": facts}
    run = RunDirectory.open(path, "new", **options)
    for step, values in lines:
        if resume is not None and step == resume + 1:
            run.finish("stopped")
            run = RunDirectory.open(path, "resume", resume_step=resume, **options)
        run.write_metrics(step, values)
    run.finish("completed")
    return read_run(path)


def test_times_are_medians_after_warm_up_without_validation_and_checkpoint(tmp_path):
    lines = [(step, {"timing/total": 100.0, "timing/generation": 90.0}) for step in range(1, 6)]
    lines += [(6, {"timing/total": 4.0, "timing/generation": 3.0, "timing/other": 1.0})]
    lines += [(7, {"timing/total": 14.0, "timing/generation": 3.0, "timing/validation": 11.0})]
    lines += [(8, {"timing/total": 6.0, "timing/generation": 4.0, "timing/refit": 1.0, "timing/refit/load": 0.5})]
    timing = summarise(make(tmp_path / "run", lines)).timing
    assert timing.counted_steps == 2
    assert timing.median_step == 5.0
    assert timing.total == 524.0
    rows = {row.name: row for row in timing.rows}
    assert list(rows) == ["refit", "load", "generation", "validation", "other"]
    assert (rows["generation"].median, rows["generation"].share, rows["generation"].total) == (3.5, 0.7, 460.0)
    assert (rows["load"].depth, rows["load"].share, rows["load"].median) == (1, 0.05, 0.5)
    assert (rows["validation"].median, rows["validation"].share, rows["validation"].steps) == (11.0, None, 1)
    assert (rows["other"].median, rows["other"].share) == (1.0, 0.1)


def test_shares_of_the_phases_sum_to_one(tmp_path):
    timing = summarise(read_run(write_synthetic_run(tmp_path / "run", steps=40))).timing
    assert sum(row.share for row in timing.rows if row.depth == 0 and row.share) == pytest.approx(1.0)
    assert sum(row.total for row in timing.rows if row.depth == 0) == pytest.approx(timing.total)


def test_a_resume_warms_up_again(tmp_path):
    lines = [(step, {"timing/total": float(step)}) for step in range(1, 21)]
    timing = summarise(make(tmp_path / "run", lines, resume=10)).timing
    assert timing.counted_steps == 10
    assert timing.median_step == statistics.median([6, 7, 8, 9, 10, 16, 17, 18, 19, 20])


def test_a_run_too_short_for_a_warm_up_says_so(tmp_path):
    timing = summarise(make(tmp_path / "run", [(1, {"timing/total": 2.0}), (2, {"timing/total": 4.0})])).timing
    assert (timing.counted_steps, timing.median_step) == (2, 3.0)
    assert "all steps" in timing.rule


def test_accuracy_and_reward(tmp_path):
    lines = [(step, {"train/reward": step / 100}) for step in range(1, 51)]
    lines[9][1]["validation/accuracy"] = 0.9
    lines[29][1]["validation/accuracy"] = math.nan
    lines[39][1]["validation/accuracy"] = 0.7
    summary = summarise(make(tmp_path / "run", lines, chance=0.25, max_steps=50))
    assert (summary.accuracy, summary.accuracy_step) == (0.7, 40)
    assert (summary.best_accuracy, summary.best_accuracy_step) == (0.9, 10)
    assert summary.reward_first == pytest.approx(0.105)
    assert summary.reward_last == pytest.approx(0.405)
    assert summary.not_finite == ["validation/accuracy at step 30"]
    assert (summary.chance, summary.max_steps, summary.last_step) == (0.25, 50, 50)


def test_a_run_without_steps_has_no_figures(tmp_path):
    summary = summarise(make(tmp_path / "run", []))
    assert (summary.steps, summary.accuracy, summary.reward_last, summary.timing.rows) == (0, None, None, [])
    assert summary.timing.median_step is None


def test_memory_is_of_the_gpu_where_there_is_one(tmp_path):
    cpu = [(1, {"memory/rss_gib": 0.5, "memory/allocated_gib": 0.0})]
    gpu = [(1, {"memory/rss_gib": 0.5, "memory/allocated_gib": 70.0})]
    assert summarise(make(tmp_path / "cpu", cpu)).peak_memory_gib == 0.5
    assert summarise(make(tmp_path / "gpu", gpu)).peak_memory_gib == 70.0
