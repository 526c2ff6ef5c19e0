"""Refits between processes: what arrives, and how both sides end when one fails."""

import contextlib

import pytest

from grpo.errors import WorkerError
from grpo.refit.errors import RefitError
from grpo.refit.session import RefitSession
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.groups.failures import RankError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.reservation import Reservation
from tests.functional.workers.groups.conftest import gone
from tests.support.refits import SHAPES, SmallEngineRank, SmallPolicyRank, settings, tensors

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
BOTH = pytest.mark.parametrize("colocated", [True, False], ids=["shared", "broadcast"])
START = 100.0


class Refits:
    """Groups of policy and engine ranks, and the refits between them."""

    def __init__(self, policy, engine, *, colocated, deadline_s):
        self.policy, self.engine, self.weight_version, self.arrived = policy, engine, 0, []
        self._settings = settings(deadline_s=deadline_s)
        self.begin_anew(colocated=colocated)

    def begin_anew(self, *, colocated):
        self._session = RefitSession(self, self.policy, self, self.engine, settings=self._settings, colocated=colocated)

    def residences(self):
        return {"engine_weights": "gpu"}

    def updated(self, version):
        self.arrived.append(version)

    def refit(self, version, policy=None, engine=None, rank=0):
        self.weight_version = version
        ranks = self.policy.world_size
        self.policy.call_each("become", [(version, policy if each == rank else None) for each in range(ranks)])
        self.engine.call_all("become", engine)
        timer = PhaseTimer()
        with timer.step():
            self._session.ensure_current(timer)
        return self._session.step_metrics()


@pytest.fixture
def start(shared_ray):
    with contextlib.ExitStack() as stack:

        def begin(*, colocated, ranks=1, shapes=SHAPES, deadline_s=START):
            policies, engines = (stack.enter_context(Reservation(shared_ray, ranks)) for _ in range(2))
            policy = stack.enter_context(RayGroup(SmallPolicyRank, [], reservation=policies, deadline_s=START))
            engine = stack.enter_context(RayGroup(SmallEngineRank, [shapes], reservation=engines, deadline_s=START))
            for each in (policy, engine):
                each._deadline_s = deadline_s  # of calls: the start may take longer on a busy machine
            return Refits(policy, engine, colocated=colocated, deadline_s=0.8 * deadline_s)

        yield begin


def test_two_ranks_of_the_policy_to_two_of_the_engine(start):
    refits = start(colocated=True, ranks=2)
    model = sum(each.nbytes for each in tensors(0).values())
    for version in (3, 4, 5, 6):
        if version == 5:
            refits.begin_anew(colocated=False)
        measured = refits.refit(version)
        assert refits.engine.call_all("holds", version) == [True, True]
        assert measured["performance/refit_gib"] * 2**30 <= 1.1 * model
        assert measured["performance/refit_messages"] == 3
    assert refits.arrived == [3, 4, 5, 6]
    assert refits.policy.call_all("exports") == [4, 4]


@pytest.mark.parametrize(
    ("colocated", "side", "kind"),
    [
        pytest.param(
            colocated, side, kind, id=f"{'shared' if colocated else 'broadcast'}, {side} {kind}",
            marks=[] if (side == "policy") == (colocated == (kind == "is killed")) else [pytest.mark.nightly],
        )
        for colocated in (True, False)
        for side in ("policy", "engine")
        for kind in ("raises", "is killed")
    ],
)  # fmt: skip
def test_a_side_that_fails_ends_both_and_is_named(start, colocated, side, kind):
    refits = start(colocated=colocated)
    refits.refit(1)
    pids = [place.pid for group in (refits.policy, refits.engine) for place in group.places]
    name = {"policy": "SmallPolicyRank", "engine": "SmallEngineRank"}[side]
    told = {"raises": "raised .*TroubleError: in the middle of the weights", "is killed": "died during refit_"}[kind]
    with pytest.raises(RankError, match=rf"(?s){name} rank 0 on node .*{told}"):
        refits.refit(2, **{side: kind})
    assert gone(pids)
    for group in (refits.policy, refits.engine):
        with pytest.raises(WorkerError, match="after the group had ended"):
            group.call_all("become", None)


@pytest.mark.nightly
@BOTH
def test_a_rank_that_sends_nothing_is_named_too(start, colocated):
    refits = start(colocated=colocated, ranks=2)
    with pytest.raises(RankError, match=r"(?s)SmallPolicyRank rank 1 .*TroubleError"):
        refits.refit(1, policy="raises", rank=1)


@pytest.mark.nightly
@BOTH
@pytest.mark.parametrize("side", ["policy", "engine"])
def test_a_side_that_hangs_is_named_with_its_stacks(start, colocated, side):
    """The other, which waits for it, gives up before."""
    refits = start(colocated=colocated, deadline_s=4.0)
    name = {"policy": "SmallPolicyRank", "engine": "SmallEngineRank"}[side]
    with pytest.raises(RankError, match=rf"(?s){name} rank 0 .*did not return within 4 s.*in trouble"):
        refits.refit(1, **{side: "hangs"})


@pytest.mark.nightly
@BOTH
def test_a_shape_that_the_engine_refuses(start, colocated):
    refits = start(colocated=colocated, shapes=SHAPES | {"big": (33, 64)})
    with pytest.raises(RankError, match=r"the policy sends big \[64, 33\].*the engine has shape \[33, 64\]") as raised:
        refits.refit(1)
    assert isinstance(raised.value.__cause__, RefitError)
    assert refits.policy.call_all("exports") == [0]
