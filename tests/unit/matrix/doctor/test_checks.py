import re
from dataclasses import replace

import pytest

from grpo.matrix.doctor.checks import examine
from grpo.matrix.doctor.facts import Facts, Folder
from tests.support.matrix import CPU_PARTITION, PARTITION, nodes

GOOD = Facts(
    python=(3, 12),
    packages={"torch": "2.11.0+cu130", "vllm": "0.25.1", "PyYAML": "6.0.2"},
    requirements=("torch>=2.11", "pyyaml>=6.0", 'vllm>=0.25; extra == "vllm"', 'tomli; python_version < "3.0"'),
    locked={"torch": "2.11.0", "vllm": "0.25.1"},
    cuda="13.0",
    node={**nodes()[0], "gpus": [{**gpu, "driver": "580.65.06"} for gpu in nodes()[0]["gpus"]], "hcas": ["mlx5_0"]},
    interfaces={"lo": True, "eno1": True, "ib0": False},
    adapters={"mlx5_0": "ACTIVE"},
    memlock_kib=None,
    nofile=65536,
    shm=Folder("/shm", True, 64.0),
    temporary=Folder("/local", True, 500.0),
    cache=Folder("/shared/cache", True, 500.0),
    address="10.0.0.1",
)
SITE = PARTITION.model_copy(
    update={
        "network": PARTITION.network.model_copy(update={"control_interface": "eno1", "hcas": ["mlx5_0"]}),
        "ulimits": PARTITION.ulimits.model_copy(update={"memlock": "unlimited", "nofile": 65536}),
        "slurm": PARTITION.slurm.model_copy(update={"partition": "batch"}),
    }
)
PROXY = {"https_proxy": "http://user:hunter2@proxy:3128"}


def states(facts=GOOD, partition=SITE):
    return examine(replace(facts, programs=facts.programs or {"sbatch": True}), partition)


def test_a_good_node_passes_every_check():
    checks = states()
    assert {check.status for check in checks} == {"ok"}
    assert len({check.name for check in checks}) >= 12
    assert all(not check.fix for check in checks)


@pytest.mark.parametrize(
    ("changes", "name", "status", "found", "fix"),
    [
        ({"python": (3, 10)}, "python", "failed", "3.10", "3.11"),
        ({"packages": {"torch": "2.11.0"}}, "packages", "failed", "pyyaml is missing", "pip install"),
        (
            {"packages": {**GOOD.packages, "vllm": "0.20.0"}},
            "packages", "failed", "vllm 0.20.0, and >=0.25 is needed", "pip install",
        ),
        ({"packages": {**GOOD.packages, "torch": "2.12.0"}}, "lock", "warning", "torch 2.12.0, locked 2.11.0", "lock"),
        ({"cuda": None}, "driver", "failed", "a build for CPUs", "torch"),
        ({"node": {**GOOD.node, "gpus": []}}, "driver", "failed", "no GPU", "--gpus-per-node"),
        ({"node": {**GOOD.node, "gpus": [{"driver": "535.1"}] * 8}}, "driver", "failed", "13.0 needs 580", "driver"),
        ({"node": {**GOOD.node, "gpus": GOOD.node["gpus"][:4]}}, "node", "failed", "4 GPUs", "another node"),
        ({"node": {**GOOD.node, "hcas": []}}, "node", "failed", "no adapter mlx5_0", "another node"),
        ({"interfaces": {"lo": True}}, "interface", "failed", "eno1 .* does not exist", "lo"),
        ({"interfaces": {"lo": True, "eno1": False}}, "interface", "failed", "is down", "lo"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "=ib9"}}, "interface", "failed", "ib9 .NCCL_SOCKET_IFNAME", "eno1"),
        ({"adapters": {"mlx5_0": "DOWN"}}, "adapter", "failed", "mlx5_0 is DOWN", "administrators"),
        ({"address": None}, "host name", "failed", "does not resolve", "hosts"),
        ({"address": "127.0.1.1"}, "host name", "warning", "127.0.1.1", "resolve"),
        ({"nofile": 1024}, "open files", "failed", "1024", "ulimit -n 65536"),
        ({"memlock_kib": 64}, "locked memory", "failed", "64 KiB", "ulimit -l unlimited"),
        ({"shm": None}, "shared memory", "failed", "missing", "--shm-size"),
        ({"shm": Folder("/shm", True, 0.06)}, "shared memory", "failed", "0.06 GiB", "--shm-size"),
        ({"shm": Folder("/shm", True, 1.0)}, "shared memory", "warning", "1.0 GiB", "--shm-size"),
        ({"temporary": Folder("/x", False, 9.0)}, "scratch", "failed", "/x cannot be written", "TMPDIR"),
        ({"temporary": Folder("/x", True, 1.0)}, "scratch", "warning", "1 GiB free", "TMPDIR"),
        ({"cache": Folder("/x", False, 9.0)}, "cache", "failed", "cannot be written", "GRPO_HOME"),
        ({"variables": PROXY}, "proxy", "failed", "proxy:3128, without localhost, 127.0.0.1", "no_proxy"),
        ({"variables": {"NCCL_IB_DISABLE": "1"}}, "variable", "warning", "NCCL_IB_DISABLE=1", "unset"),
        ({"programs": {"sbatch": False}}, "slurm", "warning", "no sbatch", "login node"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_and_says_what_to_do(changes, name, status, found, fix):
    (check,) = [one for one in states(replace(GOOD, **changes)) if one.name == name and one.status != "ok"]
    assert check.status == status
    assert re.search(found, check.found)
    assert fix in check.fix


def test_no_password_of_a_proxy_is_shown():
    checks = states(replace(GOOD, variables=PROXY))
    assert all("hunter2" not in check.found + check.fix for check in checks)
    exempt = {**PROXY, "NO_PROXY": "localhost, 127.0.0.1,.site"}
    assert all(check.status == "ok" for check in states(replace(GOOD, variables=exempt)))


def test_a_partitions_proxy_that_is_not_set():
    site = SITE.model_copy(update={"proxy": "http://proxy:3128"})
    (check,) = [one for one in states(partition=site) if one.name == "proxy"]
    assert (check.status, "export https_proxy=http://proxy:3128" in check.fix) == ("warning", True)


def test_a_laptop_without_gpus_is_good_too():
    laptop = replace(
        GOOD, cuda=None, node={"host": "laptop", "gpus": [], "hcas": []}, adapters={}, memlock_kib=8192,
        address="127.0.0.1", shm=Folder("/shm", True, 2.0), locked={}, nofile=10000,
    )  # fmt: skip
    for partition in (None, CPU_PARTITION):
        assert {check.status for check in states(laptop, partition)} == {"ok"}


def test_the_extras_line_for_another_python_does_not_count():
    lines = ('megatron-core==0.16.*; python_version < "3.0" and extra == "megatron"', "torch>=2.11")
    facts = replace(GOOD, requirements=lines, packages={"torch": "2.11.0", "megatron-core": "0.19.2"})
    assert next(one for one in states(facts) if one.name == "packages").status == "ok"
