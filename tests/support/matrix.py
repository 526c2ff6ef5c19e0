"""Cases, references and evidence for tests of the judge: small, and stated in full where they are used."""

from grpo.matrix.judge import Evidence, judge_run
from grpo.matrix.judge.sanity import REQUIRED
from grpo.matrix.schema import Case, Partition, Reference
from grpo.telemetry.timers import PHASES

SECONDS = {"generation": 84.0, "policy_training": 28.0, "logprobs": 18.0, "refit": 14.0}
COLUMNS = ["timing/total", "timing/policy_training", "timing/refit", "timing/generation", "timing/logprobs"]
STACK = {"torch": "2.11.0+cu130", "vllm": "0.25.1", "megatron_core": "0.19.2", "cuda": "13.0", "driver": "580.65.06"}
CONFIG = {"grpo": {"seed": 1, "num_prompts_per_step": 64}, "logger": {"log_dir": "runs/a"}}
PARTITION = Partition.model_validate(
    {
        "schema_version": 1,
        "description": "test",
        "gpu": {"name": "H100 80GB", "memory_gib": 79.6, "bf16_dense_tflops": 989.4, "memory_gb_per_s": 3352.0},
        "gpus_per_node": 8,
        "environment": {"kind": "venv"},
    }
)
CPU_PARTITION = PARTITION.model_copy(update={"gpu": None, "gpus_per_node": 0})


def nodes(count=1, gpus=8, name="NVIDIA H100 80GB HBM3", mig="Disabled"):
    return [{"host": f"node{n}", "gpus": [{"name": name, "mig": mig}] * gpus} for n in range(count)]


def case(**changes):
    checks = {"against_reference": COLUMNS, "bounds": {}, "present": []} | changes.pop("checks", {})
    fields = {
        "id": "some-case", "family": "some", "layer": "cluster", "recipe": "tiny", "gpus_per_node": 8,
        "partitions": ["here"], "steps": 25, "time_limit": "01:00:00", "tier": "L3", "cadence": "weekly",
        "paths": ["grpo/**"], "owner": "somebody", "checks": checks,
    }  # fmt: skip
    return Case.model_validate(fields | changes)


def measured(values=None, *, spread=0.005, runs=5, stack=None, **figures):
    total = sum(SECONDS.values()) + 3.0
    seconds = {"timing/total": total, **{f"timing/{phase}": value for phase, value in SECONDS.items()}}
    values = values or {name: {"value": value, "unit": "s", "spread": spread} for name, value in seconds.items()}
    source = {
        "kind": "measured", "runs": [f"run-{n}" for n in range(runs)], "nodes": [["node0"]], "commit": "abc",
        "image": None, "stack": stack or {"torch": "2.11", "vllm": "0.25", "cuda": "13"}, "date": "2026-11-30",
        "approved_by": "somebody",
    }  # fmt: skip
    return Reference.model_validate({"schema_version": 2, "source": source, "values": values | figures})


def published(total=147.0, seconds=None, stack=None):
    values = {"timing/total": total, **{f"timing/{phase}": value for phase, value in (seconds or SECONDS).items()}}
    source = {"kind": "published", "title": "a table", "settings": "some", "stack": stack or {}}
    figures = {name: {"value": value, "unit": "s"} for name, value in values.items()}
    return Reference.model_validate({"schema_version": 1, "source": source, "values": figures})


def unmeasured():
    source = {"kind": "none", "owner": "somebody", "date": "2026-11-30", "reason": "not run yet"}
    return Reference.model_validate({"schema_version": 1, "source": source, "values": {}})


def record(step, seconds=None, other=3.0, **changes):
    """One step's metrics, with all that every run has. Changes are by metric; None takes one away."""
    phases = {**dict.fromkeys(PHASES, 0.0), **SECONDS, **(seconds or {})}
    values = dict.fromkeys(REQUIRED, 1.0)
    values |= {f"timing/{phase}": value for phase, value in phases.items()}
    values |= {"timing/other": other, "timing/total": sum(phases.values()) + other}
    values |= changes
    return {"step": step, **{name: value for name, value in values.items() if value is not None}}


def evidence(records=None, **changes):
    fields = {
        "metrics": [record(step) for step in range(1, 26)] if records is None else records, "state": "completed",
        "stack": STACK, "nodes": nodes(), "config": CONFIG, "run": "run-x",
    }  # fmt: skip
    return Evidence(**fields | changes)


def verdict(seen=None, the_case=None, reference=None, partition=PARTITION, expected=None):
    return judge_run(
        seen or evidence(), the_case or case(), reference, partition_name="here", partition=partition,
        expected_config=CONFIG if expected is None else expected,
    )  # fmt: skip


def with_rates(hcas=(), **rates):
    """The partition with a canary's rates."""
    return PARTITION.model_copy(
        update={
            "canary": PARTITION.canary.model_copy(update=rates),
            "network": PARTITION.network.model_copy(update={"hcas": list(hcas)}),
        }
    )


def canary(hosts=("node0",), gpus=8, matmul=800.0, transport="ib"):
    """What `grpo canary` writes, at the rates of a good machine."""
    gpu = {
        "bf16_matmul_tflops": matmul, "device_copy_gb_per_s": 2000.0, "host_to_device_gb_per_s": 54.0,
        "device_to_host_gb_per_s": 54.0,
    }  # fmt: skip
    return {
        "device": "cuda",
        "nodes": [
            {"host": host, "all_reduce_node_gb_per_s": 340.0, "gpus": [{"index": n, **gpu} for n in range(gpus)]}
            for host in hosts
        ],
        "pairs": [
            {"hosts": [first, second], "all_reduce_pair_gb_per_s": 45.0}
            for at, first in enumerate(hosts)
            for second in hosts[at + 1 :]
        ],
        "nccl": {"version": "2.27.3", "transport": transport, "interfaces": []},
    }
