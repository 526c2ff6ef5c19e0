"""The address that a node is reached at, and its InfiniBand adapters."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

_SIOCGIFADDR = 0x8915
_ADAPTERS = Path("/sys/class/infiniband")
# Any address that is not on this machine: nothing is sent, the route alone is looked up.
_ELSEWHERE = ("203.0.113.1", 9)


class AddressError(RuntimeError):
    """A node without the network that its partition describes."""


def interface_address(interface: str | None) -> str:
    """IPv4 address of the interface; None: of the one that the default route uses, else of the host's name.

    Raises AddressError naming the interfaces that there are.
    """
    if interface is None:
        return _default_address()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            there = ", ".join(name for _, name in socket.if_nameindex())
            raise AddressError(
                f"network.control_interface {interface} has no IPv4 address; there are {there}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def check_address(address: str) -> str:
    """The address, which others can reach and this node can listen on. Raises AddressError."""
    if not ipaddress.ip_address(address).is_loopback:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError as error:
                raise AddressError(f"cannot listen on {address}: {error}") from None
    return address


def check_adapters(names: Sequence[str], root: Path = _ADAPTERS) -> None:
    """Raise AddressError naming the InfiniBand adapters that are not there or have no active port."""
    bad = [
        name for name in names if not any("ACTIVE" in path.read_text() for path in root.glob(f"{name}/ports/*/state"))
    ]
    if bad:
        there = ", ".join(sorted(path.name for path in root.glob("*"))) or "none"
        raise AddressError(f"network.hcas {', '.join(bad)}: no active port; there are {there}")


def _default_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
