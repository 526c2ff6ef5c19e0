"""The step against a reference while a run trains."""

import re
from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix.show.pace import Pace, read_pace

REFERENCES = Path(__file__).parents[4] / "matrices" / "references"
PUBLISHED = REFERENCES / "h100-80g" / "70b-megatron.yaml"
# Of the report that this project began with.
SLOW = {"total": 178.0, "policy_training": 31.0, "refit": 26.0, "generation": 87.0, "logprobs": 20.0}


def step(scale=1.0):
    return {"train/reward": 0.5, "timing/validation": None, **{f"timing/{name}": scale * s for name, s in SLOW.items()}}


def test_it_says_what_grew_in_the_words_of_grpo_status():
    pace = read_pace(PUBLISHED, 2)
    assert pace.words() == ""
    for number, scale in enumerate((9.0, 8.0, 1.0, 1.0, 5.0), 1):
        pace.add(number, step(scale))
    assert pace.words() == ("178 s (147, +21 %): refit +12, other +11, policy training +3, generation +3, log-probs +2")


def test_the_warm_up_counts_until_there_is_more_and_again_after_a_resume():
    pace = read_pace(PUBLISHED, 2)
    pace.add(31, step(2.0))
    assert pace.words().startswith("356 s (147, +142 %)")
    pace.add(32, step(2.0))
    pace.add(33, step())
    assert pace.words().startswith("178 s")


def test_no_more_than_the_last_steps_are_kept():
    pace = read_pace(PUBLISHED, 0)
    for number in range(1, 501):
        pace.add(number, step(1.0 if number > 300 else 2.0))
    assert isinstance(pace, Pace)
    assert len(pace._records) == 200
    assert pace.words().startswith("178 s")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (REFERENCES / "nothing.yaml", "there is no such file"),
        (REFERENCES / "h200-141g" / "8b-megatron.yaml", "it has no timing/total"),
    ],
)
def test_what_is_no_reference(path, message):
    with pytest.raises(MatrixError, match=f"{re.escape(str(path))}: {message}"):
        read_pace(path)
