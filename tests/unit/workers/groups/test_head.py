import socket
import time

import pytest

from grpo.workers.groups import head
from grpo.workers.groups.head import HeadWatch


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(head, "_POLL_SECONDS", 0.01)


def lost(watch):
    ends = time.monotonic() + 30
    while watch.lost is None and time.monotonic() < ends:
        time.sleep(0.01)
    return watch.lost


def test_a_head_that_is_gone_is_told_with_its_address_and_why():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        watch = HeadWatch(address, 0.05)
        for _ in range(3):
            server.accept()[0].close()  # each is another look
        assert watch.lost is None
    told = lost(watch)
    assert told is not None
    assert told.startswith(f"Ray's head (gcs_server at {address}) has not answered for 0.05 s (")
    assert "refused" in told


def test_one_that_comes_back_in_time_is_not_lost():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = f"127.0.0.1:{server.getsockname()[1]}", server.getsockname()[1]
        watch = HeadWatch(address, 60.0)
        server.accept()[0].close()
    with socket.create_server(("127.0.0.1", port)) as server:
        server.accept()[0].close()
        server.accept()[0].close()
    assert watch.lost is None
    watch.stop()


def test_one_whose_watch_has_stopped_is_not_looked_at():
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = HeadWatch(f"127.0.0.1:{server.getsockname()[1]}", 0.0)
        server.accept()[0].close()
        watch.stop()
        watch._thread.join(10)
    assert not watch._thread.is_alive()
    assert watch.lost is None
