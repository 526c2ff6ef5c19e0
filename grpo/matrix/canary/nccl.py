"""Which way NCCL goes, from what it prints with NCCL_DEBUG=INFO."""

import re
from collections.abc import Iterable
from typing import Any

ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
UNKNOWN = "unknown"
_NETWORK = re.compile(r"Using network (\S+)")
_DEVICES = re.compile(r"NET/(\w+) : Using (.*)")
_DEVICE = re.compile(r"\[\d+\]([^:\s]+)")
_PATH = re.compile(r"\bvia (\S+)")
_NAMES = {"ib": "ib", "ibext": "ib", "socket": "socket"}


def read_transport(lines: Iterable[str]) -> dict[str, Any]:
    """`transport` (ib, socket, another plugin's name in lower case, unknown), its `interfaces`, and `paths` taken.

    `transport` is the network that NCCL chose, which one node has too; `paths` are of the channels that it made, such
    as P2P, SHM, NET/IB.
    """
    transport, interfaces, paths = UNKNOWN, [], []
    for line in lines:
        if found := _NETWORK.search(line):
            transport = _name(found[1])
        elif found := _DEVICES.search(line):
            transport = _name(found[1]) if transport == UNKNOWN else transport
            interfaces += _DEVICE.findall(found[2].partition("; OOB")[0])
        elif found := _PATH.search(line):
            paths.append("/".join(found[1].split("/")[: 2 if found[1].startswith("NET/") else 1]))
    return {
        "transport": transport,
        "interfaces": list(dict.fromkeys(interfaces)),
        "paths": sorted(set(paths)),
    }


def _name(text: str) -> str:
    plain = text.lower()
    return next((name for start, name in _NAMES.items() if plain.startswith(start)), plain)
