import threading

import pytest
import torch

from grpo.errors import WorkerError
from grpo.placement.resources import Residence
from grpo.refit import endpoints, transport
from grpo.refit.errors import RefitError
from grpo.refit.session import parts
from grpo.refit.transport import Received, Sent
from grpo.telemetry.timers import PhaseTimer
from tests.support.refits import SHAPES, SmallEngine, SmallPolicy, TroubleError, session, tensors

BOTH = pytest.mark.parametrize("colocated", [True, False], ids=["shared", "broadcast"])


def same(held, version, dtype=torch.float32):
    expected = tensors(version, dtype=dtype)
    return list(held) == list(expected) and all(torch.equal(held[name], each) for name, each in expected.items())


def refit(session):
    timer = PhaseTimer()
    with timer.step() as times:
        session.ensure_current(timer)
    return times


@BOTH
@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20])
def test_every_version_arrives_whole_and_once(colocated, bucket_bytes):
    policy, engine = SmallPolicy(), SmallEngine()
    with session(policy, engine, colocated=colocated, bucket_bytes=bucket_bytes) as refits:
        for version in (0, 3, 4):
            policy.weight_version = version
            times = [refit(refits) for _ in range(2)]
            assert same(engine.held, version)
            assert times[0]["timing/refit"] > 0
            assert times[1]["timing/refit"] == 0
    assert engine.versions == [0, 3, 4]
    assert policy.exports == 3


@BOTH
def test_the_parts_of_a_refit_and_what_travelled(colocated):
    policy, engine = SmallPolicy(), SmallEngine()
    with session(policy, engine, colocated=colocated) as refits:
        first, policy.weight_version = refit(refits), 1
        second = refit(refits)
    names = {key.removeprefix("timing/refit/") for key in second if key.startswith("timing/refit/")}
    assert names == {"export", "transfer", "load"}
    assert first["timing/refit/connect"] > 0
    assert sum(second[f"timing/refit/{name}"] for name in names) <= second["timing/refit"]
    measured = refits.step_metrics()
    model = sum(each.nbytes for each in tensors(0).values())
    assert model <= measured["performance/refit_gib"] * 2**30 <= 1.1 * model
    assert measured["performance/refit_messages"] == 3  # embed to scale; big alone; head
    assert sum(engine.given.values()) == 2 * tensors(0)["big"].nbytes  # and never the whole model
    assert measured["performance/refit_gbps"] > 0
    assert refits.step_metrics() == {}


def test_weights_that_the_engine_has_given_up_are_sent_again():
    policy, engine = SmallPolicy(), SmallEngine()
    with session(policy, engine, colocated=True) as refits:
        refit(refits)
        engine.weights = Residence.ABSENT
        refit(refits)
    assert engine.versions == [0, 0]


@BOTH
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (SmallEngine(SHAPES | {"big": (33, 64)}), r"sends big \[64, 33\] float32, engine rank 0 has shape \[33, 64\]"),
        (SmallEngine(SHAPES | {"more": (1,)}), r"engine rank 0 needs more \[1\], which the policy does not send"),
        (SmallEngine({"embed": (7, 5)}), "sends norm, which engine rank 0 does not have.*and 1 more"),
        (SmallEngine(aliases={"head": "embed"}), "sends head, which engine rank 0 ties to embed"),
        (SmallEngine(dtype="bfloat16"), r"sends embed \[7, 5\] float32, engine rank 0 computes in bfloat16"),
    ],
)
def test_what_the_engine_would_not_take_is_refused_before_anything_is_made(colocated, engine, message):
    policy = SmallPolicy()
    with session(policy, engine, colocated=colocated) as refits, pytest.raises(RefitError, match=message):
        refit(refits)
    assert policy.exports == 0
    assert engine.held == {}


@BOTH
@pytest.mark.parametrize("checks", ["off", "sampled"])
def test_other_dtypes_and_checks(colocated, checks):
    policy, engine = SmallPolicy(dtype=torch.bfloat16), SmallEngine(dtype="bfloat16")
    with session(policy, engine, colocated=colocated, checks=checks) as refits:
        refit(refits)
    assert same(engine.held, 0, torch.bfloat16)


def test_seconds_that_hide_behind_the_load_are_no_export():
    sent, received = Sent(1, 10, 1, {}, export_s=3.0, wait_s=9.0), Received(1, 1, 10, 1, {}, wait_s=1.0, load_s=4.0)
    assert parts([sent], [received], 10.0) == {"export": 3.0, "transfer": 3.0, "load": 4.0}
    assert parts([sent], [received], 5.0) == {"export": 1.0, "transfer": 0.0, "load": 4.0}
    assert parts([sent], [received], 2.0) == {"export": 0.0, "transfer": 0.0, "load": 2.0}


@BOTH
@pytest.mark.parametrize("side", ["policy", "engine"])
def test_a_side_that_raises_ends_the_other_and_its_error_is_told(colocated, side):
    policy, engine = SmallPolicy(), SmallEngine()
    with session(policy, engine, colocated=colocated) as refits:
        refit(refits)
        policy.weight_version = 1
        {"policy": policy, "engine": engine}[side].trouble = "raises"
        with pytest.raises(TroubleError, match="in the middle"):
            refit(refits)
        with pytest.raises(WorkerError, match="after the worker had ended"):
            refit(refits)


@BOTH
def test_what_arrives_altered_is_told_by_its_bucket(colocated, monkeypatch):
    taken = transport.Checksums.add

    def altered(self, index, flat):
        taken(self, index, flat)
        if index == 1 and threading.current_thread() in sending:
            flat[100] ^= 4  # after the sender has looked

    sending = []
    plain = endpoints.send

    def send(*arguments, **options):
        sending.append(threading.current_thread())
        return plain(*arguments, **options)

    monkeypatch.setattr(transport.Checksums, "add", altered)
    monkeypatch.setattr(endpoints, "send", send)
    message = r"bucket 1 \(of 3; its first tensor is big .*arrived at engine rank 0 altered"
    with session(SmallPolicy(), SmallEngine(), colocated=colocated) as refits, pytest.raises(RefitError, match=message):
        refit(refits)
