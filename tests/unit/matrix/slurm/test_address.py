import socket

import pytest

from grpo.matrix.slurm.address import AddressError, check_adapters, check_address, interface_address


def test_the_address_of_an_interface():
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(AddressError, match=r"network\.control_interface bond9 has no IPv4 address; there are .*lo"):
        interface_address("bond9")


def test_without_a_name_it_is_an_address_of_this_machine():
    address = interface_address(None)
    with socket.socket() as probe:
        probe.bind((address, 0))


def test_an_address_must_be_of_this_node():
    assert check_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(AddressError, match=r"cannot listen on 203\.0\.113\.7"):
        check_address("203.0.113.7")


def test_adapters_must_have_an_active_port(tmp_path):
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    check_adapters([], tmp_path)
    check_adapters(["mlx5_0"], tmp_path)
    with pytest.raises(AddressError, match="mlx5_1, mlx5_7: no active port; there are mlx5_0, mlx5_1"):
        check_adapters(["mlx5_0", "mlx5_1", "mlx5_7"], tmp_path)
    with pytest.raises(AddressError, match="there are none"):
        check_adapters(["mlx5_0"], tmp_path / "nothing")
