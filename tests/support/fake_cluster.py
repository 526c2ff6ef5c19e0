"""A Slurm that answers from a list, and a clock that moves only when somebody pauses."""

from grpo.matrix.slurm.client import JobState
from grpo.matrix.slurm.runner import Waiting


class FakeCluster:
    """`states` are given one a question, the last one for ever; an exception among them is raised."""

    def __init__(self, *states, on_submit=None):
        self.states = [JobState(state) if isinstance(state, str) else state for state in states]
        self.submitted = []
        self.cancelled = []
        self.on_submit = on_submit

    def submit(self, script):
        self.submitted.append(script)
        if self.on_submit is not None:
            self.on_submit(script.parent)
        return "7"

    def cancel(self, job_id):
        self.cancelled.append(job_id)

    def state(self, job_id):
        assert job_id == "7"
        seen = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(seen, Exception):
            raise seen
        return seen


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


def waiting(queue_seconds=60.0, run_seconds=600.0):
    clock = FakeClock()
    said = []
    return Waiting(queue_seconds, run_seconds, said.append, clock, clock.pause), said, clock
