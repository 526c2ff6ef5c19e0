"""Whether the machine was as it should be (rule 6): the canary against the partition's rates."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo.matrix.judge.words import number
from grpo.matrix.schema import Partition

LEAST_SHARE = 0.97
RETRIES = 2
PAIR = "all_reduce_pair_gb_per_s"
NODE = "all_reduce_node_gb_per_s"
MEASURE_WORDS = {
    "bf16_matmul_tflops": "matrix product",
    "device_copy_gb_per_s": "device copy",
    "host_to_device_gb_per_s": "copy to the GPU",
    "device_to_host_gb_per_s": "copy from the GPU",
    NODE: "all-reduce in the node",
    PAIR: "all-reduce of the pair",
}

Health = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class Machine:
    """What the canary says of a run's nodes."""

    health: Health
    problems: tuple[str, ...]  # why it is bad, or unknown
    exclude: tuple[str, ...] = ()  # nodes to stay away from


def check_canary(canary: Mapping[str, Any], partition: Partition, hosts: Sequence[str] = ()) -> Machine:
    """Each node and each pair of nodes against the partition's rates, and the transport against its adapters.

    `hosts`: the run's, all of which it must have measured. On a partition without GPUs, or without rates, a canary only
    records.
    """
    rates = {name: rate for name, rate in partition.canary.model_dump().items() if rate is not None}
    if partition.gpu is None or not (rates or partition.network.hcas):
        return Machine("unknown", ("the partition says no rates to hold a canary against",))
    if not canary:
        return Machine("unknown", ("no canary was run: start it with the run, or `grpo canary` on these nodes",))
    slow = [*_slow_nodes(canary, rates), *_slow_pairs(canary, rates)]
    problems = [message for message, _ in slow]
    transport = canary.get("nccl", {}).get("transport")
    if partition.network.hcas and transport == "socket":
        problems.append("NCCL went over sockets, and the partition has InfiniBand")
    if problems:
        return Machine("bad", tuple(problems), _to_exclude([hosts for _, hosts in slow]))
    missing = [MEASURE_WORDS[name] for name in rates if not _measured(canary, name)]
    # With or without their domain: whoever names a node does so in either way.
    measured = {_short(node.get("host")) for node in canary.get("nodes", [])}
    missing += [host for host in hosts if _short(host) not in measured]
    if missing:
        return Machine("unknown", (f"the canary did not measure {', '.join(missing)}",))
    return Machine("good", ())


def _short(host: Any) -> str:
    return str(host).partition(".")[0]


def _slow_nodes(canary: Mapping[str, Any], rates: Mapping[str, float]) -> Iterable[tuple[str, tuple[str, ...]]]:
    for node in canary.get("nodes", []):
        for name, rate in rates.items():
            value, who = _least(node, name)
            if value is not None and not value >= LEAST_SHARE * rate:
                host = str(node.get("host"))
                yield f"{host}{who}: {_share_words(name, value, rate)}", (host,)


def _least(node: Mapping[str, Any], name: str) -> tuple[float | None, str]:
    """The worst of a node's GPUs, or the figure of the node itself."""
    if name in (NODE, PAIR):
        value = node.get(name) if name == NODE else None
        return value, ""
    of_gpus = [(gpu[name], gpu.get("index")) for gpu in node.get("gpus", []) if gpu.get(name) is not None]
    if not of_gpus:
        return None, ""
    value, index = min(of_gpus, key=lambda pair: pair[0])
    return value, f" GPU {index}"


def _slow_pairs(canary: Mapping[str, Any], rates: Mapping[str, float]) -> Iterable[tuple[str, tuple[str, ...]]]:
    rate = rates.get(PAIR)
    for pair in canary.get("pairs", []):
        value = pair.get(PAIR)
        if rate is not None and value is not None and not value >= LEAST_SHARE * rate:
            hosts = tuple(str(host) for host in pair.get("hosts", ()))
            yield f"{' and '.join(hosts)}: {_share_words(PAIR, value, rate)}", hosts


def _to_exclude(slow: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Slow nodes; of slow pairs, whichever nodes cover them all, the most frequent first."""
    chosen = {hosts[0] for hosts in slow if len(hosts) == 1}
    left = [hosts for hosts in slow if len(hosts) > 1 and not chosen & set(hosts)]
    while left:
        counts = Counter(host for hosts in left for host in hosts)
        most = max(counts.values())
        # Two nodes of one slow pair: neither is known to be the good one.
        chosen |= {host for host, count in counts.items() if count == most}
        left = [hosts for hosts in left if not chosen & set(hosts)]
    return tuple(sorted(chosen))


def _measured(canary: Mapping[str, Any], name: str) -> bool:
    if name == PAIR:
        one_node = len(canary.get("nodes", [])) < 2
        return one_node or any(pair.get(PAIR) is not None for pair in canary.get("pairs", []))
    nodes = canary.get("nodes", [])
    single = name == NODE and all(len(node.get("gpus", [])) < 2 for node in nodes)
    return bool(nodes) and (single or all(_least(node, name)[0] is not None for node in nodes))


def _share_words(name: str, value: float, rate: float) -> str:
    return f"{MEASURE_WORDS[name]} {number(value)}, {100 * value / rate:.0f} % of the partition's {number(rate)}"
