import socket

import pytest

from grpo.refit.broadcast import BroadcastReceiver, BroadcastSender
from grpo.refit.errors import PeerLostError
from grpo.refit.manifest import Manifest, Weight
from grpo.workers.groups.calls import in_thread

MANIFEST = Manifest.of([Weight(name, (4,), "float32") for name in "abcde"], 16)
HERE = {"address": "127.0.0.1", "on_gpu": False}


def joined(receivers):
    sender = BroadcastSender(MANIFEST, receivers=receivers, deadline_s=20.0, **HERE)
    waiting = [
        in_thread(lambda number=number: BroadcastReceiver(MANIFEST, sender.hello, number, deadline_s=20.0, **HERE))
        for number in range(receivers)
    ]
    sender.join()
    return sender, [each.result(20) for each in waiting]


def test_every_receiver_gets_every_bucket_in_its_order():
    sender, receivers = joined(2)

    def send():
        for bucket in MANIFEST.buckets:
            sender.free(bucket).tensors[0].fill_(float(bucket.index))
            sender.publish(bucket)
        sender.finish()

    def receive(receiver):
        found = []
        for bucket in MANIFEST.buckets:
            found.append(receiver.take(bucket).tensors[0].tolist())
            receiver.release(bucket)
        return found

    for _ in range(2):
        working = [in_thread(send), *(in_thread(lambda each=each: receive(each)) for each in receivers)]
        _, *found = [each.result(20) for each in working]
        assert found == [[[float(index)] * 4 for index in range(5)]] * 2
    for each in (sender, *receivers):
        each.close()


def test_a_sender_that_has_gone_is_no_wait_without_end():
    sender, (receiver,) = joined(1)
    receiver._link.deadline.seconds = 0.2
    receiver.begin()
    with pytest.raises(PeerLostError, match="a broadcast of weights failed"):
        receiver.take(MANIFEST.buckets[0])
    sender.close()
    receiver.close()


def test_receivers_that_do_not_come_are_no_wait_without_end():
    sender = BroadcastSender(MANIFEST, receivers=1, deadline_s=0.5, **HERE)
    with pytest.raises(PeerLostError, match="rank 0 of a refit's process group"):
        sender.join()


def test_a_sender_that_nobody_joins_gives_its_port_back():
    sender = BroadcastSender(MANIFEST, receivers=1, deadline_s=20.0, **HERE)
    sender.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", sender.hello.port))
