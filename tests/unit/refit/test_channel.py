import os
import tempfile
import threading

import pytest

from grpo.refit import channel as channels
from grpo.refit.channel import Channel, Listener
from grpo.refit.errors import PeerLostError, RefitError


def pair(deadline_s=20.0):
    listener = Listener(deadline_s)
    receivers = [Channel.connect(listener.name, number, deadline_s) for number in (1, 0)]
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


def test_nothing_waits_longer_than_the_deadline():
    senders, (receiver, other) = pair(deadline_s=0.05)
    with pytest.raises(PeerLostError, match=r"the sender did nothing for 0\.05 s"):
        receiver.receive()
    with pytest.raises(PeerLostError, match="did nothing"):
        receiver.receive_file()
    close(*senders, receiver, other)
    listener = Listener(0.05)
    with pytest.raises(PeerLostError, match=r"receivers \[0, 1\] did not connect within 0\.05 s"):
        listener.accept(2)
    listener.close()


def test_a_name_that_nobody_listens_to():
    with pytest.raises(PeerLostError, match="the sender does not listen"):
        Channel.connect("grpo-refit-none", 0, 1.0)


def test_names_cannot_be_guessed_and_another_user_is_refused(monkeypatch):
    listener, other = Listener(5.0), Listener(5.0)
    assert listener.name != other.name
    assert len(listener.name) > 40
    monkeypatch.setattr(channels.os, "getuid", lambda: 12345)
    with pytest.raises(RefitError, match="of another user"):
        Channel.connect(listener.name, 0, 5.0)
    close(listener, other)
