"""Fault kind j1: right answers are right from any thread, and an error is no wrong answer."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo.errors import RewardError
from grpo.rewards.verifiers import load_verifier

CASES = [
    ("72", "The answer is \\boxed{72}.", 1.0),
    ("72", "The answer is \\boxed{71}.", 0.0),
    ("72", "so 6 * 12 = 72", 1.0),
    ("\\frac{1}{2}", "\\boxed{0.5}", 1.0),
    ("0.5", "$\\frac{2}{4}$", 1.0),
    ("x^2+1", "\\boxed{1+x^2}", 1.0),
    ("x^2+1", "\\boxed{x^2-1}", 0.0),
    ("(0,1)", "\\boxed{(0, 1)}", 1.0),
    ("\\sqrt{8}", "\\boxed{2\\sqrt{2}}", 1.0),
    ("1,000", "\\boxed{1000}", 1.0),
    ("7", "", 0.0),
    ("7", "I do not know", 0.0),
    ("7", "\\boxed{", 0.0),
    ("7", "\\boxed{\\frac{7}{", 0.0),
    ("7", "\x00\ud800 \\boxed{}", 0.0),
]


@pytest.mark.parametrize(("answer", "completion", "score"), CASES)
def test_score(answer, completion, score):
    assert load_verifier("math", {})(prompt="", completion=completion, answer=answer, record={}) == score


def test_from_other_threads():
    verify = load_verifier("math", {})

    def score(case):
        return verify(prompt="", completion=case[1], answer=case[0], record={})

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(score, CASES)) == [case[2] for case in CASES]


@pytest.mark.parametrize(("answer", "reason"), [(None, "no reference answer"), ("", "no mathematical expression")])
def test_useless_reference_answer_is_an_error_not_a_wrong_answer(answer, reason):
    with pytest.raises(ValueError, match=reason):
        load_verifier("math", {})(prompt="", completion="\\boxed{1}", answer=answer, record={})


@pytest.mark.parametrize("error", [RuntimeError("sympy"), MemoryError(), RecursionError()])
@pytest.mark.parametrize("place", ["math_verify.parser.extract_match", "math_verify.grader.sympy_expr_eq"])
def test_error_inside_the_library_is_an_error_not_a_wrong_answer(monkeypatch, place, error):
    def fail(*_, **__):
        raise error

    verify = load_verifier("math", {})
    assert verify(prompt="", completion="\\boxed{1}", answer="2", record={}) == 0.0
    monkeypatch.setattr(place, fail)
    with pytest.raises(type(error)):
        verify(prompt="", completion="\\boxed{1}", answer="2", record={})


def test_numeric_options():
    loose = load_verifier("math", {"float_rounding": 2})
    exact = load_verifier("math", {"float_rounding": 6})
    sample = {"prompt": "", "completion": "\\boxed{3.1416}", "answer": "3.14159", "record": {}}
    assert (loose(**sample), exact(**sample)) == (1.0, 0.0)


def test_unknown_option():
    with pytest.raises(RewardError, match=r"math.*tolerance"):
        load_verifier("math", {"tolerance": 1})


def test_no_warning_about_the_limit_that_the_pool_has(caplog):
    with caplog.at_level(logging.WARNING):
        load_verifier("math", {})(prompt="", completion="1", answer="1", record={})
    assert caplog.records == []
