import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from grpo.tcp_store import reserve_port
from grpo.workers.groups.rendezvous import Membership, join_process_group, leave_process_group


def test_names_are_those_of_torchrun():
    environment = Membership(3, 8, 1, 2, 4, "10.0.0.7", 1234).environment()
    assert environment == {
        "RANK": "3", "WORLD_SIZE": "8", "GROUP_RANK": "1", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "1234",
    }  # fmt: skip


def test_on_loopback_the_transports_stay_there():
    environment = Membership(0, 1, 0, 0, 1, "127.0.0.1", 1).environment()
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


def test_without_the_variables_a_process_is_alone():
    join_process_group("gloo", timeout_s=5.0, environment={})
    try:
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0, 1.0]
        assert dist.get_world_size() == 1
    finally:
        leave_process_group()
    leave_process_group()


def _rank(rank, port, results):
    environment = Membership(rank, 2, 0, rank, 2, "127.0.0.1", port).environment()
    join_process_group("gloo", timeout_s=60.0, environment=environment)
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    results.put((rank, tensor.item()))
    leave_process_group()


def test_ranks_meet_at_the_port_that_the_first_holds():
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    port = reserve_port("127.0.0.1")
    other = context.Process(target=_rank, args=(1, port, results))
    other.start()
    _rank(0, port, results)
    other.join(60)
    assert sorted([results.get(), results.get()]) == [(0, 3.0), (1, 3.0)]
