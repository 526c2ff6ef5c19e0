import math
import re
import xml.etree.ElementTree as ET

import pytest

from grpo.telemetry.figures import MAX_POINTS, draw_figures, smooth, thin, with_background
from grpo.telemetry.reader import read_run
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.theme import DARK, LIGHT, themed
from tests.support.synthetic_run import write_synthetic_run

ALL = [
    "reward", "lengths", "phases", "kl", "entropy", "logprob_error", "grad_norm", "signal", "loss", "learning_rate",
    "throughput", "memory",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(write_synthetic_run(tmp_path_factory.mktemp("figures") / "run", steps=25))


@pytest.fixture(scope="module")
def figures(run):
    return draw_figures(run)


def test_every_picture_is_drawn_well_formed_and_described(figures):
    assert [figure.name for figure in figures] == ALL
    for figure in figures:
        ET.fromstring(with_background(figure).svg)  # noqa: S314
    texts = {figure.name: figure.svg for figure in figures}
    assert "chance 0.19" in texts["reward"]
    assert "truncated share" in texts["lengths"]
    assert "policy training" in texts["phases"]
    assert "validation accuracy 0." in figures[0].description


def test_what_was_not_measured_is_left_out(tmp_path):
    without = ("train/kl", "validation/", "rollout/truncated", "memory/", "performance/")
    figures = draw_figures(read_run(write_synthetic_run(tmp_path / "run", steps=3, without=without)))
    names = [figure.name for figure in figures]
    assert names == [name for name in ALL if name not in ("kl", "throughput", "memory")]
    assert "truncated" not in figures[1].svg


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_short_runs_are_drawn(tmp_path, steps):
    short = draw_figures(read_run(write_synthetic_run(tmp_path / "run", steps=steps)))
    assert len(short) == (len(ALL) if steps else 0)


def test_values_that_are_not_finite_are_left_out(tmp_path):
    values = {"timing/total": math.inf, "timing/data": math.nan, "timing/other": 1.0, "train/reward": math.nan}
    run = RunDirectory.open(tmp_path / "run", "new", name="n", config_yaml="a: 1", command=[])
    run.write_metrics(1, values)
    run.write_metrics(2, {"timing/total": 1.0})
    run.finish("completed")
    assert [figure.name for figure in draw_figures(read_run(run.path))] == ["phases"]


def test_the_same_run_gives_the_same_pictures(run, figures):
    assert [figure.svg for figure in draw_figures(run)] == [figure.svg for figure in figures]


def test_a_page_recolours_every_role_and_shares_no_ids(figures):
    pages = {figure.name: themed(figure.svg, figure.name) for figure in figures}
    assert set(DARK) == set(LIGHT)
    ids = [element.get("id") for svg in pages.values() for element in ET.fromstring(svg).iter() if element.get("id")]  # noqa: S314
    assert len(ids) == len(set(ids))
    for name, svg in pages.items():
        targets = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)
        assert targets
        assert {target for pair in targets for target in pair if target} <= set(ids), name
    assert not any(color in svg for color in LIGHT.values() for svg in pages.values())
    assert "var(--phase-generation)" in pages["phases"]


def test_a_long_run_is_thinned_to_means():
    steps, values = thin(list(range(1000)), [float(step) for step in range(1000)])
    assert len(steps) <= MAX_POINTS
    assert values[0] == steps[0] == 1.0  # of 0, 1, 2
    assert values[-1] == 999.0
    assert thin([1, 2], [5.0, 6.0]) == ([1.0, 2.0], [5.0, 6.0])


def test_smoothing_keeps_a_constant_and_does_not_lag():
    assert smooth([2.0] * 30) == [2.0] * 30
    line = [float(i) for i in range(100)]
    assert smooth(line)[10:-10] == pytest.approx(line[10:-10])
