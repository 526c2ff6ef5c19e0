"""How steps of two sides are put together."""

import pytest
import torch

from benchmarks.gpu.peers import OURS, TRL, SideError, checked, summary
from benchmarks.paired import Block


class FakeSide:
    name = OURS

    def __init__(self, tokens: float) -> None:
        self.facts = {"tokens": tokens}


def test_each_step_is_compared_with_the_other_sides_of_the_same_round():
    blocks = {
        OURS: [Block(6.0, {"generation": 2.0}), Block(5.0, {"generation": 1.0}), Block(9.0, {"generation": 5.0})],
        TRL: [Block(15.0, {"generation": 11.0}), Block(10.0, {"generation": 7.0}), Block(30.0, {})],
    }
    found = summary(blocks)
    assert found["seconds"] == {OURS: 6.0, TRL: 15.0}
    assert found["ratio"] == pytest.approx({"median": 0.4, "low": 0.3, "high": 0.5})
    assert found["parts"] == {OURS: {"generation": 2.0}, TRL: {"generation": 7.0}}


def test_a_step_of_another_length_is_an_error(monkeypatch):
    block = Block(1.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 3 << 30))
    assert checked(FakeSide(16 * 16 * 512), block) is block
    with pytest.raises(SideError, match="sampled 99 tokens a step, not 131072"):
        checked(FakeSide(99), block)
