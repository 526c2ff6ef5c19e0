import argparse

import pytest

from benchmarks.gpu import __main__ as programme

PARTS = [programme.Part("one", "", 10, 50), programme.Part("two", "", 10, 50), programme.Part("three", "", 1000, 2000)]


@pytest.fixture
def options(tmp_path):
    return argparse.Namespace(out=tmp_path, seconds=100.0, size="h200", engine="hf")


def test_what_a_part_had_before_it_failed_is_kept_with_its_traceback(monkeypatch, options):
    def measured(_name, _options):
        yield {"kind": "limits", "products": {}, "copy": 1.0, "shape": "a model"}
        raise ArithmeticError("it broke")

    monkeypatch.setattr(programme, "measured", measured)
    assert programme.run_part("one", options) == programme.FAILED
    kept, failure = programme.records(options.out)
    assert (kept["part"], kept["kind"]) == ("one", "limits")
    assert "ArithmeticError: it broke" in failure["traceback"]


def test_after_a_failure_the_others_go_on_and_what_has_no_time_is_named(monkeypatch, options):
    begun = []

    def start(part, limit, options):
        begun.append((part.name, limit))
        if part.name == "one":
            programme.record(options.out, "one", {"kind": "failure", "traceback": "it broke"})

    monkeypatch.setattr(programme, "start", start)
    assert programme.run_all(PARTS, options) == programme.FAILED
    assert begun == [("one", 50), ("two", 50)]
    assert "Not begun" in (options.out / programme.PAGE).read_text()


@pytest.mark.parametrize(("error", "code"), [(0.05, 0), (0.2, programme.MISSED)])
def test_a_missed_goal_is_an_exit_code_of_its_own(monkeypatch, options, error, code):
    def start(part, _limit, options):
        about = {"shape": "a model", "backend": "dtensor", "cap": 64, "planned": {}, "planned_total": 0, "reserved": 0}
        programme.record(options.out, part.name, {"kind": "memory", "measured": 1, "error": error, **about})

    monkeypatch.setattr(programme, "start", start)
    assert programme.run_all(PARTS[:1], options) == code
