import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from grpo.matrix.diagnose.diagnose import Observed, diagnose
from grpo.matrix.diagnose.show import diagnosis_sheet, side_by_side
from grpo.matrix.judge.machine import Machine
from grpo.matrix.judge.verdict import Slowest
from grpo.matrix.show.sheet import sheet_markdown, sheet_table
from tests.support.matrix import SECONDS, measured, unmeasured

GOOD, UNKNOWN = Machine("good", ()), Machine("unknown", ("no canary",))


def seen(other=3.0, **seconds):
    phases = {**SECONDS, **seconds}
    values = {f"timing/{phase}": value for phase, value in phases.items()}
    return Observed("a run", {**values, "timing/total": sum(phases.values()) + other, "timing/other": other})


def states(diagnosis):
    return {phase.phase: phase for phase in diagnosis.phases}


@settings(deadline=None)
@given(phase=st.sampled_from(sorted(SECONDS)), factor=st.floats(1.1, 8.0))
def test_the_slow_phase_is_found_with_its_seconds_and_the_rest_is_not_blamed(phase, factor):
    found = states(diagnose(seen(**{phase: SECONDS[phase] * factor}), measured(), GOOD))
    assert [name for name, state in found.items() if state.slow] == [phase]
    assert math.isclose(found[phase].ratio, factor)
    assert math.isclose(found[phase].seconds, SECONDS[phase] * (factor - 1), abs_tol=1e-9)
    assert math.isclose(sum(state.seconds for state in found.values()), SECONDS[phase] * (factor - 1), abs_tol=1e-6)


def test_a_run_like_its_reference_is_not_slow():
    found = diagnose(seen(), measured(), GOOD)
    assert "nothing is slow" in found.sentence
    assert not found.patterns
    assert not any(state.causes for state in found.phases)
    assert "nothing is slow" in diagnose(seen(generation=60.0), measured(), GOOD).sentence


def test_what_no_phase_covers_is_found_too():
    found = states(diagnose(seen(other=14.0), measured(), UNKNOWN))
    assert found["other"].slow
    assert (found["other"].reference, found["other"].value) == (3.0, 14.0)


@pytest.mark.parametrize(
    ("machine", "word", "says"),
    [
        (GOOD, "software", "the canary finds the nodes as they should be"),
        (Machine("bad", ("b GPU 3: matrix product 700",), ("b",)), "machine", "run it again without b"),
        (Machine("bad", ("sockets",)), "machine", "run it on other nodes"),
        (UNKNOWN, "unknown", "no canary"),
    ],
)
def test_machine_or_software(machine, word, says):
    found = diagnose(seen(refit=30.0), measured(), machine)
    assert found.machine == word
    assert any(says in words for words in found.machine_words)


def test_without_a_reference_it_says_where_the_time_goes():
    found = diagnose(seen(), unmeasured(), UNKNOWN)
    assert "no reference" in found.sentence
    assert "generation 84 s" in found.sentence
    assert found.phases[0].phase == "generation"
    assert math.isclose(sum(state.of_total for state in found.phases), 1.0)
    assert diagnose(seen(), None, UNKNOWN).sentence == found.sentence


def test_a_row_without_a_total():
    assert "no total" in diagnose(Observed("row", {"timing/refit": 3.0}), None, UNKNOWN).sentence


def test_shown_as_table_markdown_and_json():
    slowest = {"timing/refit": Slowest(5, "node3", 31.0, 28.0)}
    observed = Observed("a run", seen(refit=30.0).values, {"policy": {"precision": "float32"}}, {}, slowest)
    found = diagnose(observed, measured(), GOOD)
    sheet = diagnosis_sheet(found)
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(sheet_table(sheet))
    text = console.file.getvalue()
    assert "refit is 2.14x (30 s against 14 s, +16 s)" in text
    assert "slowest: rank 5 on node3, 31 s (median 28 s)" in text
    assert "float32 weights are twice the bytes" in text
    assert "software: the canary" in sheet_markdown(sheet)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["phases"][0]["causes"][0]["remedy"] == "policy.precision=bfloat16"


def test_side_by_side():
    first = diagnose(seen(refit=26.0), measured(), UNKNOWN)
    other = Observed("another", seen(refit=18.62).values)
    sheet = side_by_side([first, diagnose(other, measured(), UNKNOWN)])
    assert sheet.lines == ["refit is 1.86x (+12 s) in a run and 1.33x (+4.62 s) in another"]
