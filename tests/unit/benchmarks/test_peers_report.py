import pytest

from benchmarks.paired import Block
from benchmarks.peers_report import PEER, Machine, Measured, markdown, row, verdict

THEIRS = Measured(
    [Block(0.4, {"generation": 0.2, "training": 0.1}), Block(0.8, {"generation": 0.5, "training": 0.2})],
    {"trl": "1.0"}, {"tokens": 4096.0, "reward": 0.5},
)  # fmt: skip


def measured(*seconds):
    blocks = [Block(each, {"generation": each / 2, "training": each / 4, "rewards": each / 8}) for each in seconds]
    return Measured(blocks, {"grpo-matrix": "0.1"}, {"tokens": 4096.0, "reward": 0.75})


def test_a_row_has_medians_in_milliseconds_and_ratios_by_round():
    # Rounds: 0.2 / 0.4 and 0.6 / 0.8; generation 0.1 / 0.2 and 0.3 / 0.5; training 0.05 / 0.1 and 0.15 / 0.2.
    # A quarter of a step is neither generation nor training: 50 and 150 ms.
    expected = ["400", "200", "100", "100", "0.62 (0.50-0.75)", "0.55", "0.62"]
    assert row(measured(0.2, 0.6), THEIRS) == expected
    assert row(THEIRS, None) == ["600", "350", "150", "100", "1", "1", "1"]


@pytest.mark.parametrize(
    ("seconds", "kept", "word"), [(0.2, True, "reached"), (0.26, True, "within the limit"), (0.29, False, "missed")]
)
def test_the_limit_is_seven_tenths_of_the_peers_step(seconds, kept, word):
    found = verdict("ours", measured(seconds), Measured([Block(0.4)], {}, {}))
    assert found == (kept, f"ours: {seconds / 0.4:.2f} of TRL's step (aim 0.5, limit 0.7): {word}")


def test_the_page_says_what_was_measured_where_and_with_what():
    machine = Machine("A CPU", 2, 0.25)
    page = markdown({"ours, hf": measured(0.2, 0.6), PEER: THEIRS}, machine, command=["nox", "x"], rounds=2, steps=3)
    assert "A CPU, 2 cores" in page
    assert "other processes kept 0.25 cores busy" in page
    assert "grpo-matrix 0.1, trl 1.0" in page
    assert "`nox x` (2 rounds of 3 steps)" in page
    assert "| ours, hf | 400 | 200 | 100 | 100 | 0.62 (0.50-0.75) | 0.55 | 0.62 |" in page
    assert "reward 0.75 in the last one; of the rest rewards 50.0 ms, refit 0.0 ms" in page
