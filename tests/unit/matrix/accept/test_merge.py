import datetime as dt
import math

import pytest

from grpo.errors import MatrixError
from grpo.matrix.accept.merge import merge, node_sets, unit_of
from tests.support.judged import judged, renamed
from tests.support.matrix import case

TODAY = dt.date(2026, 11, 30)


def runs(*refits, host="node{}"):
    return [judged(f"r{at}", {"refit": refit}, host=host.format(at)) for at, refit in enumerate(refits)]


def test_values_are_medians_of_runs_and_spreads_those_between_them():
    reference = merge(runs(14.0, 15.0, 14.5), case(), today=TODAY)
    refit = reference.values["timing/refit"]
    assert refit.value == 14.5
    assert math.isclose(refit.spread, 1.0 / 14.5, abs_tol=1e-6)
    assert refit.unit == "s"
    assert reference.values["timing/total"].value == 147.5
    assert reference.source.runs == ["r0", "r1", "r2"]
    assert reference.source.nodes == [["node0"], ["node1"], ["node2"]]
    assert (reference.source.commit, reference.source.stack.torch) == ("abc", "2.11.0+cu130")


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("timing/refit", "s"), ("memory/rss_gib", "GiB"), ("performance/mfu", "of the peak"),
        ("performance/training_tflops_per_gpu", "TFLOP/s"), ("performance/tokens_per_second_per_gpu", "tokens/s"),
        ("rollout/generated_tokens_per_sample", "tokens"),
    ],
)  # fmt: skip
def test_every_figure_has_its_unit(metric, unit):
    assert unit_of(metric) == unit


def test_one_or_two_runs_have_no_spread():
    for count in (1, 2):
        figures = merge(runs(*[14.0] * count), case(), today=TODAY).values
        assert all(figure.spread is None for figure in figures.values())


def test_what_takes_no_time_is_no_figure_and_tokens_are():
    figures = merge(runs(14.0), case(), today=TODAY).values
    assert "timing/checkpoint" not in figures
    assert figures["rollout/generated_tokens_per_sample"].unit == "tokens"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "other"}, "different commits"),
        ({"image": "other.sif"}, "different images"),
        ({"stack": {"torch": "2.12"}}, "different stacks"),
    ],
)
def test_runs_of_different_software_are_not_merged(change, message):
    first, second, third = runs(14.0, 14.0, 14.0)
    with pytest.raises(MatrixError, match=message):
        merge([first, second, renamed(third, **change)], case(), today=TODAY)


def test_a_figure_that_the_case_asks_for_must_be_there():
    with pytest.raises(MatrixError, match="r0 lacks timing/refit/wake"):
        merge(runs(14.0), case(checks={"against_reference": ["timing/refit/wake"]}), today=TODAY)
    with pytest.raises(MatrixError, match="no run"):
        merge([], case(), today=TODAY)


def test_runs_by_their_nodes():
    first, second, third = runs(14.0, 14.0, 14.0)
    sets = node_sets([first, second, renamed(third, nodes=first.evidence.nodes)])
    assert {nodes: len(of_set) for nodes, of_set in sets.items()} == {("node0",): 2, ("node1",): 1}
