import socket
import threading
from datetime import timedelta

import pytest

from grpo import tcp_store
from grpo.errors import WorkerError
from grpo.tcp_store import loopback_transports, open_store, release_port, reserve_port

SECONDS = timedelta(seconds=30)


def a_free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_reserved_port_is_taken_until_it_is_used():
    port = reserve_port("127.0.0.1")
    assert reserve_port("127.0.0.1") != port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    release_port(port)
    release_port(port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
    for each in list(tcp_store._reserved):
        release_port(each)
    assert not tcp_store._reserved


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("choose", [lambda _: a_free_port(), reserve_port], ids=["any port", "a reserved port"])
def test_the_store_listens_at_its_address_alone(address, choose):
    port = choose(address)
    store = open_store(address, port, 0, 1, SECONDS)
    store.set("key", "value")
    with socket.create_connection((address, port), timeout=5):
        pass
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))  # of this machine too, as those of its network are
    with socket.create_server(("127.0.0.2", port)):  # nor is all of the port taken
        pass
    assert port not in tcp_store._reserved


@pytest.mark.parametrize("choose", [lambda _: a_free_port(), reserve_port], ids=["any port", "a reserved port"])
def test_ranks_meet_in_it(choose):
    port, stores = choose("127.0.0.1"), {}

    def come(rank):
        stores[rank] = open_store("127.0.0.1", port, rank, 3, SECONDS)

    others = [threading.Thread(target=come, args=(rank,)) for rank in (1, 2)]
    for each in others:
        each.start()
    come(0)
    for each in others:
        each.join(30)
    stores[1].set("said", "by 1")
    assert [bytes(stores[rank].get("said")) for rank in range(3)] == [b"by 1"] * 3


def test_a_port_that_is_taken_and_an_address_of_another_machine_are_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkerError, match=rf"127\.0\.0\.1:{port} \(Address already in use\)"):
            open_store("127.0.0.1", port, 0, 1, SECONDS)
    with pytest.raises(WorkerError, match=r"rank 0 cannot listen at 192\.0\.2\.1:1234 \(Cannot assign"):
        open_store("192.0.2.1", 1234, 0, 1, SECONDS)
    with pytest.raises(WorkerError, match=r"rank 0 cannot listen at no\.such\.host\.invalid"):
        reserve_port("no.such.host.invalid")


def test_of_a_name_the_address_that_other_nodes_reach(monkeypatch):
    found = [(socket.AF_INET, 1, 6, "", (literal, 7)) for literal in ("127.0.1.1", "10.0.0.5", "10.0.0.6")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert tcp_store._resolved("node-5", 7) == (socket.AF_INET, ("10.0.0.5", 7))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
    assert tcp_store._resolved("node-5", 7) == (socket.AF_INET, ("127.0.1.1", 7))


def test_on_loopback_the_transports_stay_there():
    there = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert [loopback_transports(each) for each in ("127.0.0.1", "127.0.1.1", "::1", "localhost")] == [there] * 4
    assert [loopback_transports(each) for each in ("10.0.0.7", "node-7", "fe80::1")] == [{}] * 3
