from pathlib import Path

from grpo.refit.channel import Channel, Listener
from grpo.refit.deadline import Deadline
from grpo.refit.slots import COUNT, HostSlots


def test_both_processes_see_the_same_memory_which_has_no_name():
    listener = Listener(Deadline(20.0))
    receiver = Channel.connect(listener.name, 0, Deadline(20.0))
    (sender,) = listener.accept(1)
    own = HostSlots.create(100)
    own.offer(sender)
    other = HostSlots.attach(receiver, 100)
    for slot in range(COUNT):
        own.flat(slot).fill_(slot + 1)
        assert other.flat(slot).tolist() == [slot + 1] * 100
    assert str(Path(f"/proc/self/fd/{own._descriptor}").readlink()).startswith("/memfd:")  # no file of any folder
    kept = other.flat(1)
    for each in (own, other, own, listener, receiver, sender):
        each.close()
    own.flat(1)[0] = 9
    assert kept[0] == 9
