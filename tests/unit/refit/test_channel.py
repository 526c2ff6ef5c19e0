import os
import re
import tempfile
import threading

import pytest

from grpo.refit import channel as channels
from grpo.refit.channel import Channel, Listener
from grpo.refit.deadline import Deadline
from grpo.refit.errors import PeerLostError, RefitError


def pair(ours=None, theirs=None):
    listener = Listener(ours or Deadline(20.0))
    receivers = [Channel.connect(listener.name, number, theirs or Deadline(20.0)) for number in (1, 0)]
    senders = listener.accept(2)
    listener.close()
    return senders, receivers[::-1]


def close(*ends):
    for end in ends:
        end.close()


def test_ends_find_each_other_by_number_and_words_arrive_in_order():
    senders, receivers = pair()
    for number, sender in enumerate(senders):
        sender.send(7 + number)
        sender.send(-1)
    assert [[receiver.receive(), receiver.receive()] for receiver in receivers] == [[7, -1], [8, -1]]
    with pytest.raises(RefitError, match="the sender is at message 3 instead of 4"):
        senders[0].send(3), receivers[0].expect(4)
    close(*senders, *receivers)


def test_an_open_file_is_given_to_the_other_end():
    (sender, other), receivers = pair()
    with tempfile.TemporaryFile() as file:
        file.write(b"seen")
        file.flush()
        sender.send_file(file.fileno())
    descriptor = receivers[0].receive_file()
    assert os.pread(descriptor, 9, 0) == b"seen"
    os.close(descriptor)
    close(sender, other, *receivers)


def test_the_end_of_the_other_side_is_known_at_once():
    (sender, other), (receiver, last) = pair()
    waiting = threading.Thread(target=sender.close)
    waiting.start()
    with pytest.raises(PeerLostError, match="the sender has gone or given up"):
        receiver.receive()
    waiting.join()
    with pytest.raises(PeerLostError, match="the sender has gone"):
        [receiver.send(1) for _ in range(2)]
    close(other, receiver, last)


def test_nothing_waits_longer_than_the_deadline_which_is_that_of_all_waits_together():
    ours, theirs = Deadline(20.0), Deadline(20.0)
    senders, (receiver, other) = pair(ours, theirs)
    theirs.seconds = 0.05
    theirs.begin()
    with pytest.raises(PeerLostError, match=r"the sender did nothing within 0\.05 s"):
        receiver.receive()
    theirs.seconds = 100.0  # until it is begun anew, it is over
    with pytest.raises(PeerLostError, match="did nothing"):
        receiver.receive_file()
    with pytest.raises(PeerLostError, match="did nothing"):
        other.receive()
    theirs.begin()
    senders[1].send(3)
    other.expect(3)
    close(*senders, receiver, other)


def test_receivers_that_do_not_come():
    listener = Listener(Deadline(0.05))
    with pytest.raises(PeerLostError, match=r"receivers \[0, 1\] did not connect within 0\.05 s"):
        listener.accept(2)
    listener.close()


@pytest.mark.parametrize(("numbers", "awaited"), [((0, 0), [1]), ((1, 2), [0]), ((-1,), [0, 1])])
def test_a_number_that_is_nobodys_is_refused_and_all_connections_end(numbers, awaited):
    listener = Listener(Deadline(20.0))
    connected = [Channel.connect(listener.name, number, Deadline(20.0)) for number in numbers]
    with pytest.raises(
        RefitError, match=rf"number {numbers[-1]} connected, where {re.escape(str(awaited))} are awaited"
    ):
        listener.accept(2)
    for each in connected:
        with pytest.raises(PeerLostError, match="the sender has gone"):
            each.receive()
    close(listener, *connected)


def test_a_name_that_nobody_listens_to():
    with pytest.raises(PeerLostError, match="the sender does not listen"):
        Channel.connect("grpo-refit-none", 0, Deadline(1.0))


def test_another_users_process_is_turned_away_and_the_others_are_waited_for(monkeypatch):
    """Its connection comes first."""
    listener = Listener(Deadline(20.0))
    stranger = Channel.connect(listener.name, 0, Deadline(20.0))
    friend = Channel.connect(listener.name, 0, Deadline(20.0))
    users = iter([os.getuid() + 1, os.getuid()])
    monkeypatch.setattr(Channel, "user", lambda channel: next(users))
    (accepted,) = listener.accept(1)
    accepted.send(5)
    friend.expect(5)
    with pytest.raises(PeerLostError, match="the sender has gone"):
        stranger.receive()
    close(listener, stranger, friend, accepted)


def test_the_kernel_says_whose_process_the_sender_is(monkeypatch):
    listener = Listener(Deadline(20.0))
    monkeypatch.setattr(channels.os, "getuid", lambda: 12345)
    with pytest.raises(RefitError, match=r"a process of another user \(\d+\) listens as the sender"):
        Channel.connect(listener.name, 0, Deadline(20.0))
    listener.close()
