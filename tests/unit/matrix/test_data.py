"""The data of the matrix: that each part of it decides something, and that costs and versions hold together."""

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import yaml

from grpo.config.schema.base import Section
from grpo.matrix.design import cells
from grpo.matrix.judge import judge_row
from grpo.matrix.judge.bands import TOKENS, band_of, higher_is_worse, provisional
from grpo.matrix.load import REFERENCE_PREFIXES, load_matrix
from grpo.matrix.schema import LAYERS, Bound, Checks, Partition, Reference
from grpo.matrix.schema.case import Cadence, Statistic, Tier
from grpo.matrix.select import matches

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrices")
MOVE = 1.3
REFERENCES = [key for key, one in MATRIX.references.items() if one.source.kind != "none" and provisional(one) is None]


def row_of(reference):
    """A run that is exactly as the reference says."""
    return {metric: figure.value for metric, figure in reference.values.items()}


def moved(reference, factors):
    values = {
        metric: figure.model_copy(
            update={"value": figure.value * factors.get(metric, 1.0), "lower": None, "upper": None}
        )
        for metric, figure in reference.values.items()
    }
    return Reference.model_construct(**{**dict(reference), "values": values})


def outcome(key, reference):
    partition, case_id = key
    row = row_of(MATRIX.references[key])
    return judge_row(row, MATRIX.case(case_id), reference, partition_name=partition).outcome


@pytest.mark.parametrize("key", REFERENCES, ids="-".join)
def test_a_run_exactly_as_its_reference_passes(key):
    assert outcome(key, MATRIX.references[key]) == "pass"


@pytest.mark.parametrize("key", REFERENCES, ids="-".join)
@pytest.mark.parametrize("factor", [MOVE, 1 / MOVE])
def test_every_reference_moved_by_1_3_changes_the_verdict(key, factor):
    """As a whole; and of single figures each whose band is narrower than that."""
    reference = MATRIX.references[key]
    gating = [metric for metric in reference.values if metric != TOKENS and band_of(metric, reference).gates]
    assert outcome(key, moved(reference, dict.fromkeys(gating, factor))) != "pass"
    checked = 0
    for metric in gating:
        changed = moved(reference, {metric: factor})
        band, value = band_of(metric, changed), reference.values[metric].value
        outside = (band.lower is not None and value < band.lower) or (band.upper is not None and value > band.upper)
        if outside:
            slower = (factor < 1) == higher_is_worse(metric)
            assert outcome(key, changed) == ("fail" if slower else "faster"), metric
            checked += 1
    assert checked >= 2  # the total, and a phase at least


def test_every_checker_is_reached_by_some_case():
    checks = [case.checks for case in MATRIX.cases.values()]
    for name in Checks.model_fields:
        assert any(getattr(one, name) for one in checks), name
    bounds = [bound for one in checks for bound in one.bounds.values()]
    assert {bound.statistic for bound in bounds} == set(get_args(Statistic))
    for name in set(Bound.model_fields) - {"statistic"}:
        assert any(getattr(bound, name) is not None for bound in bounds), name
    metrics = {metric for one in checks for metric in one.against_reference}
    for prefix in REFERENCE_PREFIXES:
        assert any(metric.startswith(prefix) for metric in metrics), prefix
    assert any(case.min_steps for case in MATRIX.cases.values())


def test_where_speed_is_judged_so_is_the_share_that_no_phase_covers():
    """Or seconds could be hidden there: no reference has a band for them."""
    for case in MATRIX.cases.values():
        if case.checks.against_reference:
            bound = case.checks.bounds["timing/other"]
            assert (bound.share_of, bound.statistic) == ("timing/total", "median"), case.id
            assert bound.upper <= 0.05, case.id


def test_every_layer_tier_and_cadence_is_used():
    cases = MATRIX.all.values()
    assert {case.layer for case in cases} == set(LAYERS)
    assert {case.tier for case in cases} == set(get_args(Tier))
    assert {case.cadence for case in cases} == set(get_args(Cadence))


def test_pull_requests_need_no_gpu_and_the_cheapest_tier_is_theirs():
    for case in MATRIX.all.values():
        assert case.cadence != "pr" or case.gpus == 0, case.id
        assert case.layer != "unit" or (case.tier, case.cadence) == ("L0", "pr"), case.id


def test_the_gates_minutes_sum_to_no_more_than_the_whole():
    minutes = MATRIX.budgets.gate_minutes
    parts = {name: value for name, value in minutes if name != "whole"}
    assert sum(parts.values()) <= minutes.whole <= 25
    assert minutes.slurm == 12


def test_the_first_stack_of_a_case_fits_it_and_gates():
    used = Counter()
    for case in MATRIX.all.values():
        stacks = [MATRIX.stacks[name] for name in case.stacks]
        used.update(case.stacks)
        assert not stacks[0].reports_only, case.id
        assert {stack.accelerator for stack in stacks} == {"cuda" if case.gpus else "cpu"}, case.id
    assert set(used) == set(MATRIX.stacks)


def test_every_stack_has_a_lock_or_reports_only():
    for name, stack in MATRIX.stacks.items():
        assert stack.lock is None or (ROOT / stack.lock).is_file(), name
        assert (stack.lock is None) == stack.reports_only, name


def test_every_paths_pattern_means_a_file():
    tops = [path for path in ROOT.iterdir() if path.name not in {".git", ".nox", "runs"}]
    found = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*")) if path.is_file()]
    files = [path.relative_to(ROOT).as_posix() for path in found]
    for case in MATRIX.all.values():
        for pattern in case.paths:
            assert any(matches(file, [pattern.removeprefix("!")]) for file in files), (case.id, pattern)


def test_designs_have_cells():
    for suite in MATRIX.suites.values():
        assert not suite.factors or len(cells(suite)) >= 2


def test_the_template_of_a_partition_has_every_key():
    template = yaml.safe_load((ROOT / "matrices" / "partitions" / "template.yaml").read_text())
    Partition.model_validate(template)

    def missing(section, given, path):
        for name in type(section).model_fields:
            value = getattr(section, name)
            if name not in given:
                yield f"{path}{name}"
            elif isinstance(value, Section):
                yield from missing(value, given[name], f"{path}{name}.")

    assert list(missing(Partition.model_validate(template), template, "")) == []
