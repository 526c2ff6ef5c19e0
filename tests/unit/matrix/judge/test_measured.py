import pytest

from grpo.matrix.judge.measured import check_benchmark, figures_of
from grpo.matrix.schema import Benchmark

RATIO = "training.ratio.of_medians"
RECORDS = [
    {"kind": "machine", "ratio": {"of_medians": 9.0}},
    {"kind": "training", "ratio": {"of_medians": 1.01}, "cap": 4096},
    {"kind": "training", "ratio": {"of_medians": 1.015}},
    {"kind": "training", "seconds": 3.0},
]


def checked(records, **bound):
    benchmark = Benchmark.model_validate({"module": "benchmarks.gpu", "bounds": {RATIO: bound}})
    return check_benchmark(benchmark, records)


def test_figures_are_those_of_the_records_kind():
    assert figures_of(RATIO, RECORDS) == [1.01, 1.015]
    assert figures_of("training.cap", RECORDS) == [4096.0]
    assert figures_of("training.ratio", RECORDS) == []


def test_a_case_without_a_benchmark_needs_none():
    assert check_benchmark(None, []) == ([], [])


def test_every_record_must_keep_the_bound():
    ((result,), findings) = checked(RECORDS, upper=1.02)
    assert (result.value, result.holds, findings) == (1.015, True, [])
    ((result,), (finding,)) = checked([*RECORDS, {"kind": "training", "ratio": {"of_medians": 1.2}}], upper=1.02)
    assert (result.value, result.holds) == (1.2, False)
    assert (finding.failure, finding.message) == ("regression", f"{RATIO} = 1.2: the case asks for at most 1.02")


@pytest.mark.parametrize("records", [[], RECORDS[:1]])
def test_what_was_not_measured_is_a_failure(records):
    (_, (finding,)) = checked(records, upper=1.02)
    assert (finding.failure, finding.message) == ("correctness", f"{RATIO} was not measured")


def test_a_part_that_failed_is_told_of():
    broken = {"kind": "failure", "traceback": "Traceback\n  ...\nRuntimeError: out of memory"}
    (_, (finding,)) = checked([*RECORDS, broken], upper=1.02)
    assert finding.failure == "crash"
    assert "RuntimeError: out of memory" in finding.message
