import pytest

from grpo.refit.errors import PeerLostError, RefitError
from grpo.refit.manifest import Manifest, Weight
from grpo.refit.shared import SharedReceiver, SharedSender
from grpo.workers.groups.calls import in_thread

MANIFEST = Manifest.of([Weight(name, (4,), "float32") for name in "abc"], 16)
A, B, C = MANIFEST.buckets


@pytest.fixture
def pair():
    """A sender and two receivers."""
    sender = SharedSender(MANIFEST, receivers=2, on_gpu=False, deadline_s=20.0)
    joining = [
        in_thread(lambda number=number, hello=hello: SharedReceiver(MANIFEST, hello, number, deadline_s=20.0))
        for number, hello in enumerate(sender.hellos())
    ]
    sender.join()
    receivers = [each.result(20) for each in joining]
    sender.begin()
    yield sender, receivers
    for each in (sender, *receivers):
        each.close()


def hurry(sender, seconds=0.1):
    sender._deadline.seconds = seconds
    sender._deadline.begin()


def fill(sender, bucket, value):
    sender.free(bucket).tensors[0].fill_(value)
    sender.publish(bucket)


def test_a_bucket_is_not_filled_again_before_every_receiver_is_done_with_it(pair):
    sender, (one, two) = pair
    fill(sender, A, 1.0)
    fill(sender, B, 2.0)
    for receiver in (one, two):
        assert receiver.take(A).tensors[0].tolist() == [1.0] * 4
    one.release(A)
    hurry(sender)
    with pytest.raises(PeerLostError, match=r"receiver 1 did nothing within 0\.1 s"):
        sender.free(C)
    hurry(sender, 20.0)
    two.release(A)
    fill(sender, C, 3.0)
    for receiver in (one, two):
        assert receiver.take(B).tensors[0].tolist() == [2.0] * 4
        receiver.release(B)
        assert receiver.take(C).tensors[0].tolist() == [3.0] * 4
        receiver.release(C)
    sender.finish()


def test_what_was_not_taken_is_not_finished(pair):
    sender, (one, _) = pair
    fill(sender, A, 1.0)
    one.take(A)
    hurry(sender)
    with pytest.raises(PeerLostError):
        sender.finish()


def test_a_receiver_that_is_at_another_bucket_is_an_error(pair):
    sender, (one, _) = pair
    fill(sender, A, 1.0)
    with pytest.raises(RefitError, match="the sender is at message 0 instead of 1"):
        one.take(B)


def test_the_end_of_the_sender_is_known_to_all(pair):
    sender, receivers = pair
    sender.close()
    for receiver in receivers:
        with pytest.raises(PeerLostError, match="the sender has gone"):
            receiver.take(A)
