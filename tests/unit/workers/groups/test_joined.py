from types import SimpleNamespace

import pytest

from grpo.errors import WorkerError
from grpo.workers.groups import joined


class Session:
    """Nodes come up one a question."""

    def __init__(self, most):
        self.asked = 0
        self.most = most

    def nodes(self):
        self.asked += 1
        return [SimpleNamespace(address=f"10.0.0.{index}") for index in range(min(self.asked, self.most))]


def test_nodes_that_come_up_one_by_one_are_waited_for(monkeypatch):
    monkeypatch.setattr(joined, "_POLL_SECONDS", 0)
    session = Session(4)
    joined.wait_for_nodes(session, 4, 60)
    assert session.asked == 4


def test_those_that_do_not_are_said():
    session = Session(2)
    session.asked = 2
    with pytest.raises(WorkerError, match=r"2 of 3 nodes joined Ray within 0 s: 10\.0\.0\.0, 10\.0\.0\.1"):
        joined.wait_for_nodes(session, 3, 0)


def test_a_node_that_will_not_come_is_not_waited_for():
    session = Session(2)
    session.asked = 2
    with pytest.raises(WorkerError, match="node3, node5 will not join Ray"):
        joined.wait_for_nodes(session, 3, 600, lambda: ["node3", "node5"])
