"""A Slurm that answers from a script, and a clock that moves only when somebody pauses."""

from slurm_pytest_plugin.request import ClusterError
from slurm_pytest_plugin.run import Clock, Limits
from slurm_pytest_plugin.states import Seen

LIMITS = Limits(queue=100, grace=20, silence=30, lost=10, poll=1, confirmations=2)


class FakeCluster:
    """`states_of` gives each submission of a case its states, one a question, the last one for ever."""

    executor = "slurm"

    def __init__(self, states_of=None, *, on_submit=None, bad=(), refuse=()):
        self.states_of = {case: [list(each) for each in lists] for case, lists in (states_of or {}).items()}
        self.on_submit = on_submit or {}
        self.bad = bad
        self.refuse = list(refuse)
        self.requests = []
        self.cancelled = []
        self.questions = []
        self.down = False
        self.tags = {}

    def submit(self, request):
        if self.down:
            raise ClusterError("sbatch: Unable to contact slurm controller")
        if self.refuse:
            reason = self.refuse.pop(0)
            if reason:
                raise ClusterError(reason)
        self.requests.append(request)
        job_id = str(100 + len(self.requests))
        self.tags[request.tag] = job_id
        number = sum(other.case.id == request.case.id for other in self.requests)
        if request.case.id in self.on_submit:
            self.on_submit[request.case.id](request.script.parent, number)
        return job_id

    def cancel(self, job_ids):
        self.cancelled += job_ids

    def states(self, job_ids):
        self.questions.append(list(job_ids))
        if self.down:
            raise ClusterError("squeue: Unable to contact slurm controller")
        return {job_id: seen for job_id in job_ids if (seen := self._next(job_id)) is not None}

    def find(self, tag):
        return self.tags.get(tag)

    def faulty(self, nodes):
        return self.bad

    def expand(self, nodes):
        return tuple(nodes.split(","))

    def answers(self):
        return not self.down

    def _next(self, job_id):
        request = self.requests[int(job_id) - 101]
        number = sum(other.case.id == request.case.id for other in self.requests[: int(job_id) - 100])
        states = self.states_of[request.case.id][number - 1]
        seen = states.pop(0) if len(states) > 1 else states[0]
        return Seen(seen) if isinstance(seen, str) else seen


class FakeClock:
    def __init__(self):
        self.time = 0.0

    def pause(self, seconds):
        self.time += seconds

    def clock(self):
        return Clock(lambda: self.time, self.pause)
