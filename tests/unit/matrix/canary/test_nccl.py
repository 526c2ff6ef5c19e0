from grpo.matrix.canary.nccl import read_transport

INFINIBAND = """\
n1:100:200 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eno1:10.0.0.1<0>
n1:100:200 [0] NCCL INFO Using network IB
n1:100:200 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:100:200 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
""".splitlines()
SOCKETS = """\
n1:100:200 [0] NCCL INFO NET/IB : No device found.
n1:100:200 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]ib0:10.1.0.1<0>
n1:100:200 [0] NCCL INFO Using network Socket
n1:100:200 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/Socket/0
""".splitlines()


def test_infiniband():
    assert read_transport(INFINIBAND) == {
        "transport": "ib", "interfaces": ["mlx5_0", "mlx5_3"], "paths": ["NET/IB", "P2P"],
    }  # fmt: skip


def test_sockets_though_there_are_adapters():
    found = read_transport(SOCKETS)
    assert (found["transport"], found["paths"]) == ("socket", ["NET/Socket"])
    assert found["interfaces"] == ["eth0", "ib0"]


def test_without_the_line_of_the_choice_the_devices_tell():
    assert read_transport(INFINIBAND[:1])["transport"] == "ib"
    assert read_transport(["NCCL INFO Using network AWS Libfabric"])["transport"] == "aws"


def test_nothing_is_unknown():
    assert read_transport([]) == {"transport": "unknown", "interfaces": [], "paths": []}
    assert read_transport(["NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>"])["transport"] == "unknown"
