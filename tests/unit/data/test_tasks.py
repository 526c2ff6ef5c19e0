from collections import Counter

import pytest

from grpo.data.tasks import TRAIN_REPEATS, best_constant_score, largest_digit
from grpo.errors import DataError


def digits(record):
    assert record["prompt"].endswith("=")
    return [int(d) for d in record["prompt"][:-1].split(",")]


@pytest.mark.parametrize(("split", "count"), [("train", 4000), ("train", 37), ("heldout", 256), ("heldout", 20)])
def test_answers_are_the_largest_digit_and_balanced(split, count):
    records = largest_digit(split, count)
    assert len(records) == count
    for record in records:
        assert len(digits(record)) == 4
        assert record["answer"] == str(max(digits(record)))
    assert best_constant_score([r["answer"] for r in records]) <= 0.2


def test_held_out_prompts_are_distinct_and_never_trained_on():
    held_out = [r["prompt"] for r in largest_digit("heldout", 1000, seed=3)]
    assert len(set(held_out)) == 1000
    for seed in range(5):
        assert not set(held_out) & {r["prompt"] for r in largest_digit("train", 8000, seed=seed)}


def test_training_prompts_recur_a_bounded_number_of_times():
    copies = Counter(r["prompt"] for r in largest_digit("train", 4000))
    assert max(copies.values()) <= TRAIN_REPEATS


def test_seed_chooses_prompts_and_repeats_exactly():
    assert largest_digit("train", 100, seed=1) == largest_digit("train", 100, seed=1)
    assert largest_digit("train", 100, seed=1) != largest_digit("train", 100, seed=2)


def test_records_are_mixed_not_sorted_by_answer():
    answers = [r["answer"] for r in largest_digit("heldout", 256)]
    assert len(set(answers[:32])) >= 5


@pytest.mark.parametrize(
    ("split", "count", "message"),
    [
        ("heldout", 0, "1 to 1201"),
        ("heldout", 1202, "1 to 1201"),
        ("train", 10**6, "1 to 19200"),
        ("test", 5, "'heldout'"),
    ],
)
def test_what_cannot_be_balanced_is_refused_with_the_valid_range(split, count, message):
    with pytest.raises(DataError, match=message):
        largest_digit(split, count)


def test_best_constant_score():
    assert best_constant_score(["7", "7", "3", "1"]) == 0.5
    with pytest.raises(DataError, match="no answers"):
        best_constant_score([])
