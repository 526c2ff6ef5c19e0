"""The twins of the cluster cases over one, two and four nodes: job script, Ray, real vLLM, both backends, judge."""

import json

import pytest

from tests.slurm.conftest import MATRIX, matrix_job, submit

pytestmark = pytest.mark.timeout(900)
TWINS = ["tiny-hf", "tiny-8b-dtensor", "tiny-70b-dtensor", "tiny-70b-megatron"]


@pytest.fixture(scope="module")
def jobs(cluster, tmp_path_factory):
    submitted = submit(cluster, tmp_path_factory.mktemp("twins") / "r", *(matrix_job(name, name) for name in TWINS))
    yield submitted
    submitted.run.cancel()


@pytest.mark.parametrize("name", TWINS)
def test_it_passes_its_judge(jobs, name):
    outcome, verdict = jobs.end(name)
    assert verdict.outcome == "pass", (verdict.sentence, outcome.tail(40))
    assert outcome.state == "COMPLETED"
    assert all(bound.holds for bound in verdict.bounds)
    case = MATRIX.case(name)
    nodes = json.loads((outcome.folder / "run" / "nodes.json").read_text())["nodes"]
    assert len({node["host"] for node in nodes}) == case.nodes
    canary = json.loads((outcome.folder / "run" / "canary.json").read_text())
    assert canary["nodes"]
    if case.nodes > 1:
        # Each node had ranks: its part of the logs has workers.
        for node in nodes:
            assert list((outcome.folder / "logs" / node["host"]).glob("worker-*.out"))
    assert not (outcome.folder / "ray-token").exists()


@pytest.mark.nightly
def test_the_other_backend_on_one_node(cluster, tmp_path):
    jobs = submit(cluster, tmp_path / "r", matrix_job("tiny-8b-megatron", "tiny-8b-megatron"))
    outcome, verdict = jobs.end("tiny-8b-megatron")
    assert verdict.outcome == "pass", (verdict.sentence, outcome.tail(40))
