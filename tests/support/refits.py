"""Policies and engines of few tensors, for refits between them."""

import os
import signal
import threading
from contextlib import contextmanager

import torch

from grpo.placement.resources import Residence, Resource
from grpo.refit.endpoints import RefitSource, RefitTarget, Settings
from grpo.refit.manifest import Weight
from grpo.refit.session import RefitSession
from grpo.refit.writing import copied
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.expected_weights import ExpectedWeights
from grpo.workers.groups.worker_group import InProcessGroup

SHAPES = {"embed": (7, 5), "norm": (5,), "scale": (), "big": (64, 33), "head": (7, 5)}


def settings(**changed):
    return Settings(**{"bucket_bytes": 600, "checks": "full", "deadline_s": 20.0, "on_gpu": False} | changed)


def tensors(version, shapes=SHAPES, dtype=torch.float32):
    """Values that are all different, and others in each version."""
    start, made = 1000.0 * version, {}
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        made[name] = torch.arange(start, start + count, dtype=dtype).reshape(shape)
        start += count
    return made


class TroubleError(Exception):
    """What a side is told to raise."""


def trouble(kind):
    """Raise, hang, or die as if killed."""
    if kind == "raises":
        raise TroubleError("in the middle of the weights")
    if kind == "hangs":
        threading.Event().wait(100)
    if kind == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)


class SmallPolicy:
    """Exports `tensors` of its version, each of which is gone when the next is asked for."""

    def __init__(self, shapes=SHAPES, dtype=torch.float32):
        self.shapes, self.dtype, self.weight_version, self.exports = dict(shapes), dtype, 0, 0
        self.trouble = None

    def describe_weights(self):
        return [Weight.of(name, torch.empty(shape, dtype=self.dtype)) for name, shape in self.shapes.items()]

    def export_weights(self):
        self.exports += 1
        for name, value in tensors(self.weight_version, self.shapes, self.dtype).items():
            reused = value.clone()
            if name == "big":
                trouble(self.trouble)
            yield name, reused
            reused.fill_(torch.nan)

    def write_weights(self, buckets):
        return copied(self.export_weights(), buckets)


class SmallEngine:
    """Keeps copies of what arrives."""

    def __init__(self, shapes=SHAPES, aliases=None, dtype="float32"):
        self.expected = ExpectedWeights(dict(shapes), aliases or {}, vocabulary=7)
        self.dtype, self.held, self.versions = dtype, {}, []
        self.given = {}  # bytes of the storages in which weights came
        self.weights = Residence.GPU
        self.trouble = None

    def update(self, weights, version):
        self.held = {}
        for name, tensor in self.expected.checked(weights):
            self.held[name] = tensor.clone()
            self.given[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            if name == "big":
                trouble(self.trouble)
        self.versions.append(version)

    def residences(self):
        return {Resource.ENGINE_WEIGHTS: self.weights}

    def updated(self, version):
        assert self.versions[-1] == version
        self.weights = Residence.GPU

    def target(self, name="engine rank 0"):
        return RefitTarget(self.update, self.expected, self.dtype, name)


@contextmanager
def session(policy, engine, *, colocated, **changed):
    """A refit between two threads of this process."""
    source, target = RefitSource(policy), engine.target()
    try:
        yield RefitSession(
            policy, InProcessGroup(lambda: source), engine, InProcessGroup(lambda: target),
            settings=settings(**changed), colocated=colocated,
        )  # fmt: skip
    finally:
        source.refit_close()
        target.refit_close()


class Given:
    """Exports copies of what it is given."""

    def __init__(self, weights, version):
        self._weights = [(name, tensor.clone()) for name, tensor in weights]
        self.weight_version = version

    def describe_weights(self):
        return [Weight.of(name, tensor) for name, tensor in self._weights]

    def export_weights(self):
        return iter(self._weights)

    def write_weights(self, buckets):
        return copied(self.export_weights(), buckets)


def refit_into(engines, weights, version):
    """Bring a group of engines to these weights, from this process."""
    given = Given(weights, version)
    source = RefitSource(given)
    refits = RefitSession(
        given, InProcessGroup(lambda: source), engines, engines.workers, settings=settings(), colocated=True
    )
    timer = PhaseTimer()
    with timer.step():
        refits.ensure_current(timer)
    source.refit_close()


class SmallPolicyRank(RefitSource):
    """`SmallPolicy` in a worker."""

    def __init__(self, shapes=SHAPES):
        self.policy = SmallPolicy(shapes)
        super().__init__(self.policy)

    def become(self, version, kind):
        self.policy.weight_version, self.policy.trouble = version, kind

    def exports(self):
        return self.policy.exports


class SmallEngineRank(RefitTarget):
    """`SmallEngine` in a worker."""

    def __init__(self, shapes=SHAPES):
        self.engine = SmallEngine(shapes)
        super().__init__(self.engine.update, self.engine.expected, "float32", "the engine")

    def become(self, kind):
        self.engine.trouble = kind

    def holds(self, version):
        expected = tensors(version)
        return list(self.engine.held) == list(expected) and all(
            torch.equal(self.engine.held[name], each) for name, each in expected.items()
        )
