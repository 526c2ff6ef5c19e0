"""The twins of the cluster cases over one, two and four nodes: job script, Ray, real vLLM, both backends, judge."""

import json

import pytest

from tests.slurm.conftest import MATRIX
from tests.slurm.jobs import QUICK_TWINS, TWINS

pytestmark = pytest.mark.timeout(3600)


def marks_of(name):
    return [pytest.mark.jobs(name), *([] if name in QUICK_TWINS else [pytest.mark.nightly])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in TWINS])
def test_it_passes_its_judge(jobs, name):
    outcome, verdict = jobs.end(name)
    assert verdict.outcome == "pass", (verdict.sentence, outcome.sentence, outcome.tail(40))
    assert outcome.state == "COMPLETED"
    assert all(bound.holds for bound in verdict.bounds)
    case = MATRIX.case(name)
    nodes = json.loads((outcome.folder / "run" / "nodes.json").read_text())["nodes"]
    hosts = {node["host"] for node in nodes}
    assert len(hosts) == case.nodes
    canary = json.loads((outcome.folder / "run" / "canary.json").read_text())
    assert {node["host"] for node in canary["nodes"]} == hosts
    assert len(canary["pairs"]) == case.nodes * (case.nodes - 1) // 2
    if case.nodes > 1:
        # Each node had ranks: its part of the logs has workers.
        for host in hosts:
            assert list((outcome.folder / "logs" / host).glob("worker-*.out"))
    assert not (outcome.folder / "ray-token").exists()
