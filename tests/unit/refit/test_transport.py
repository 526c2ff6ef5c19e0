import functools
from dataclasses import replace

import pytest
import torch

from grpo.refit.checksum import placed_sum
from grpo.refit.errors import RefitError
from grpo.refit.manifest import Manifest, Weight
from grpo.refit.transport import Filled, Incoming, Received, Sent, check_arrival, send
from grpo.refit.writing import copied

WEIGHTS = [Weight("a", (2,), "float32"), Weight("b", (3,), "float32"), Weight("c", (2,), "float32")]
MANIFEST = Manifest.of(WEIGHTS, 16)


class Kept:
    """Sender and receiver in one: buckets are kept."""

    def __init__(self):
        self.buckets, self.calls = {}, []

    def begin(self):
        self.calls.append("begin")

    def free(self, bucket):
        flat = torch.zeros(bucket.nbytes, dtype=torch.uint8)
        self.buckets[bucket.index] = Filled(flat, bucket.views(flat))
        return self.buckets[bucket.index]

    def take(self, bucket):
        return self.buckets[bucket.index]

    def publish(self, bucket):
        self.calls.append(f"publish {bucket.index}")

    def release(self, bucket):
        self.calls.append(f"release {bucket.index}")

    def finish(self):
        self.calls.append("finish")

    def close(self):
        self.calls.append("close")


def given(*names, **changed):
    made = {weight.name: torch.full(weight.shape, float(index)) for index, weight in enumerate(WEIGHTS)} | changed
    return functools.partial(copied, iter([(name, made[name]) for name in names]))


def test_weights_arrive_in_their_order_and_buckets_are_given_back_one_by_one():
    kept = Kept()
    sent = send(given("a", "b", "c"), MANIFEST, kept, version=4, checks="full")
    incoming = Incoming(MANIFEST, kept, version=4, checks="full")
    assert [(name, tensor.tolist()) for name, tensor in incoming] == [("a", [0, 0]), ("b", [1] * 3), ("c", [2, 2])]
    received = incoming.received()
    ways = [[f"{done} {index}" for index in range(3)] for done in ("publish", "release")]
    assert kept.calls == ["begin", *ways[0], "finish", "begin", *ways[1], "finish"]
    assert (sent.messages, sent.nbytes, received.names, received.nbytes) == (3, 16 + 16 + 16, 3, 48)
    check_arrival(MANIFEST, sent, received, engine="e")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (given("a", "c"), r"exports c \[2\] float32 where the manifest has b \[3\] float32"),
        (given("a", "b"), "exports nothing more where the manifest has c"),
        (given("a", "b", "c", "a"), "exports a after the last"),
        (given("a", "b", b=torch.zeros(4)), r"exports b \[4\] float32 where"),
        (given("a", "b", b=torch.zeros(3, dtype=torch.bfloat16)), r"exports b \[3\] bfloat16 where"),
    ],
)
def test_what_is_not_in_the_manifest_is_not_sent_and_the_receiver_is_told(weights, message):
    kept = Kept()
    with pytest.raises(RefitError, match=message):
        send(weights, MANIFEST, kept, version=1, checks="off")
    assert kept.calls[-1] == "close"


def test_a_policy_that_leaves_buckets_unfilled_has_not_sent_them():
    kept = Kept()

    def write(buckets):
        next(iter(buckets))
        yield

    with pytest.raises(RefitError, match="filled 1 of 3 buckets"):
        send(write, MANIFEST, kept, version=1, checks="off")
    assert kept.calls == ["begin", "publish 0", "close"]


def test_a_policy_may_ask_for_the_next_bucket_before_it_has_filled_one():
    kept = Kept()

    def write(buckets):
        before = None
        for places in buckets:
            if before is not None:
                before[0][1].fill_(7.0)
                yield
            before = places
        before[0][1].fill_(8.0)
        yield

    sent = send(write, MANIFEST, kept, version=1, checks="full")
    assert kept.calls == ["begin", "publish 0", "publish 1", "publish 2", "finish"]
    assert [each.tensors[0].max().item() for each in kept.buckets.values()] == [7, 7, 8]
    assert sent.checksums == {
        index: int(placed_sum(each.flat.view(torch.int64))) for index, each in kept.buckets.items()
    }


def test_an_engine_that_leaves_weights_has_not_taken_them():
    kept = Kept()
    send(given("a", "b", "c"), MANIFEST, kept, version=1, checks="off")
    incoming = Incoming(MANIFEST, kept, version=1, checks="off")
    next(iter(incoming))
    with pytest.raises(RefitError, match="took 1 of 3 weights"):
        incoming.received()


SENT, RECEIVED = Sent(5, 48, 3, {1: 7}, 0.0, 0.0), Received(5, 3, 48, 3, {1: 7}, 0.0, 0.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": 4}, "refit to version 5: version sent 5, acknowledged by engine rank 2: 4"),
        ({"names": 2}, "weights sent 3, acknowledged by engine rank 2: 2"),
        ({"nbytes": 40}, "bytes sent 48"),
        ({"messages": 4}, "messages sent 3"),
        ({"checksums": {}}, r"checksums sent \[1\]"),
        ({"checksums": {1: 8}}, r"bucket 1 \(of 3; its first tensor is b \[3\] float32\) arrived at engine rank 2"),
    ],
)
def test_what_an_engine_rank_acknowledges_is_held_against_what_was_sent(changed, message):
    with pytest.raises(RefitError, match=message):
        check_arrival(MANIFEST, SENT, replace(RECEIVED, **changed), engine="engine rank 2")
