"""A Slurm that answers from a list, for tests of what is built on slurm-pytest-plugin."""

import json

from slurm_pytest_plugin import Seen
from slurm_pytest_plugin.request import ClusterError


class FakeSlurm:
    """Each question takes the next state, the last one for ever; `result` is what the job leaves."""

    executor = "slurm"

    def __init__(self, *states, result=None, refuses=""):
        self.states_left = [Seen(state) if isinstance(state, str) else state for state in states]
        self.result = result
        self.refuses = refuses
        self.requests = []
        self.cancelled = []

    def submit(self, request):
        if self.refuses:
            raise ClusterError(self.refuses)
        self.requests.append(request)
        if self.result is not None:
            value = {"schema_version": 1, "case": request.case.id, **self.result}
            (request.script.parent / "result.json").write_text(json.dumps(value))
        return str(len(self.requests))

    def states(self, job_ids):
        seen = self.states_left.pop(0) if len(self.states_left) > 1 else self.states_left[0]
        if isinstance(seen, BaseException):
            raise seen
        return dict.fromkeys(job_ids, seen)

    def cancel(self, job_ids):
        self.cancelled += job_ids

    def find(self, tag):
        return None

    def faulty(self, nodes):
        return ()

    def expand(self, nodes):
        return (nodes,)

    def answers(self):
        return True
