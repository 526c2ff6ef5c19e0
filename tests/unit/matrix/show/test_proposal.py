import datetime as dt
import io

from rich.console import Console

from grpo.matrix.accept.merge import merge
from grpo.matrix.accept.propose import propose
from grpo.matrix.show.proposal import proposal_table
from tests.support.judged import judged
from tests.support.matrix import STACK, case, measured


def test_old_new_difference_spread_and_what_moves():
    runs = [judged(f"r{at}", {"refit": 15.0 + 0.1 * at}, host=f"node{at % 2}") for at in range(5)]
    old = measured(stack=STACK, gone={"value": 1.0, "unit": "s", "spread": 0.0})
    proposal = propose(old, merge(runs, case(), today=dt.date(2026, 11, 30)))
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(proposal_table(proposal, runs))
    rows = {line.split("│")[1].strip(): line for line in console.file.getvalue().splitlines() if "│" in line}
    assert all(words in rows["refit"] for words in ("14", "15.2", "+1.2", "+9 %", "2.6 %", "moves"))
    assert "stays (within a third of the band)" in rows["generation"]
    assert "no longer measured" in rows["gone"]
    text = console.file.getvalue()
    assert "on node0: 148, 148.2, 148.4 s (3 runs)" in text
    assert "on node1: 148.1, 148.3 s (2 runs)" in text
    assert "provisional" not in text
