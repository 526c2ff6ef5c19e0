"""Whether a run may be held against a case, a partition and a reference at all (rules 6 and 8)."""

from collections.abc import Iterable, Mapping
from typing import Any

from grpo.matrix.judge.evidence import Evidence
from grpo.matrix.judge.verdict import Finding
from grpo.matrix.schema import Case, Partition, Reference

# What is left out changes neither what is computed nor how fast: where files go, when they are written, deadlines.
_FREE = (
    "logger.", "checkpointing.", "cluster.worker_timeout_s", "cluster.step_timeout_s", "cluster.join_timeout_s",
    "cluster.ray_address", "cluster.canary", "grpo.seed",
)  # fmt: skip
# How many parts of a version must agree.
_PARTS = {"torch": 2, "vllm": 2, "megatron_core": 2, "cuda": 1, "driver": 1}
_ABSENT = 0.25  # of the keys: another version of the schema lacks a few
_MAPPING = "a mapping"
_MIG_ON = "Enabled"
_MEMORY = 0.03  # drivers keep more or less of it back


def check_config(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[Finding]:
    """The run must have trained what the case says; keys that only one of the versions knows do not count.

    At least three in four must be there, or the configuration says too little.
    """
    wanted, had = dict(_flat(expected, "")), dict(_flat(found, ""))
    if not had:
        return [Finding(8, "config.yaml", "the run has no config.yaml: nothing says that it is of this case", None)]
    keys = [key for key, value in wanted.items() if value != _MAPPING and not key.startswith(_FREE)]
    absent = [key for key in keys if key not in had]
    if len(absent) > _ABSENT * len(keys):
        message = f"config.yaml lacks {len(absent)} of {len(keys)} keys, {absent[0]} first: it may be of another case"
        return [Finding(8, "config.yaml", message, None)]
    differing = [
        f"{key} = {had[key]!r}, and the case says {value!r}"
        for key, value in wanted.items()
        if key in had and had[key] != value and not key.startswith(_FREE)
    ]
    if not differing:
        return []
    more = f" (and {len(differing) - 3} more)" if len(differing) > 3 else ""
    return [Finding(8, "config.yaml", f"the run is not of this case: {'; '.join(differing[:3])}{more}", None)]


def check_nodes(evidence: Evidence, case: Case, partition: Partition) -> list[Finding]:
    """The nodes must be the partition's: as many as the case has, with its GPUs."""
    problems = []
    if len(evidence.nodes) != case.nodes:
        problems.append(f"nodes.json has {len(evidence.nodes)} nodes, and the case {case.nodes}")
    for node in evidence.nodes:
        problems += node_problems(node, partition)
    return [Finding(6, "nodes.json", problem, "infra") for problem in dict.fromkeys(problems)]


def node_problems(node: Mapping[str, Any], partition: Partition) -> Iterable[str]:
    """What keeps a node, as nodes.json describes it, from being one of the partition's."""
    host, gpus = node.get("host"), node.get("gpus", [])
    if len(gpus) != partition.gpus_per_node:
        yield f"node {host} has {len(gpus)} GPUs, and the partition's nodes {partition.gpus_per_node}"
    absent = [name for name in partition.network.hcas if name not in node.get("hcas", [])]
    if absent:
        yield f"node {host} has no adapter {', '.join(absent)}, and the partition's nodes have"
    if partition.gpu is None:
        return
    for gpu in gpus:
        name = str(gpu.get("name", "GPU without a name"))
        if partition.gpu.name.lower() not in name.lower():
            yield f"node {host} has a {name}, and the partition {partition.gpu.name}"
        if "memory_mib" in gpu and abs(float(gpu["memory_mib"]) / 1024 / partition.gpu.memory_gib - 1) > _MEMORY:
            yield f"node {host}: a GPU has {gpu['memory_mib']} MiB, and the partition's {partition.gpu.memory_gib} GiB"
        if (gpu.get("mig") == _MIG_ON) != partition.gpu.mig:
            yield f"node {host}: MIG is {gpu.get('mig')}"
        driver = str(gpu.get("driver", "not recorded"))
        if partition.gpu.driver is not None and driver.partition(".")[0] != partition.gpu.driver:
            yield f"node {host}: the driver is {driver}, and the partition's is of branch {partition.gpu.driver}"


def check_stack(evidence: Evidence, reference: Reference) -> list[Finding]:
    """Versions and image that figures depend on must be the reference's; a published row informs where they are not."""
    if reference.source.kind == "none":
        return []
    differing = []
    for name, wanted in reference.source.stack.model_dump().items():
        had = evidence.stack.get(name)
        if wanted is not None and (had is None or _version(had, name) != _version(wanted, name)):
            differing.append(f"{name} {had or 'not recorded'}, the reference's {wanted}")
    source = reference.source
    if source.kind == "measured" and source.image != evidence.image:
        differing.append(f"image {evidence.image or 'none'}, the reference's {source.image or 'none'}")
    if not differing:
        return []
    informs = "the published row only informs" if reference.source.kind == "published" else "not judged: stack"
    return [Finding(8, "stack", f"{informs} ({'; '.join(differing)})", None)]


def _version(text: str, name: str) -> tuple[str, ...]:
    return tuple(text.partition("+")[0].split(".")[: _PARTS[name]])


def _flat(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        if prefix:
            yield prefix, _MAPPING  # which one value in its place differs from
        for name, below in value.items():
            yield from _flat(below, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value
