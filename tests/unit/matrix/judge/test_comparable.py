import pytest

from grpo.matrix.judge.comparable import check_config, check_nodes, check_stack
from tests.support.matrix import (
    CONFIG,
    CPU_PARTITION,
    PARTITION,
    STACK,
    case,
    evidence,
    measured,
    nodes,
    published,
    unmeasured,
    with_rates,
)


def test_a_run_of_another_case_is_told_by_its_configuration():
    other = {"grpo": {"seed": 1, "num_prompts_per_step": 8}}
    (finding,) = check_config(CONFIG, other)
    assert "grpo.num_prompts_per_step = 8, and the case says 64" in finding.message


def test_seeds_folders_and_keys_of_another_version_do_not_count():
    assert (
        check_config(CONFIG, {"grpo": {"seed": 2, "num_prompts_per_step": 64, "new": 1}, "logger": {"log_dir": "b"}})
        == []
    )


def test_a_run_without_configuration_cannot_be_placed():
    assert "no config.yaml" in check_config(CONFIG, {})[0].message


def test_a_configuration_that_says_little_is_of_no_case():
    expected = {"grpo": {"num_prompts_per_step": 64}, "policy": dict.fromkeys("abcdefgh", 1)}
    assert check_config(expected, expected) == []
    (finding,) = check_config(expected, {"grpo": expected["grpo"]})
    assert "lacks 8 of 9 keys, policy.a first" in finding.message
    assert check_config(expected, {**expected, "policy": dict.fromkeys("abcdefg", 1)}) == []


@pytest.mark.parametrize(("one", "other"), [(None, {"kind": "file"}), ({"kind": "file"}, None)])
def test_one_value_is_not_a_mapping(one, other):
    rest = {"shuffle": True, "train": 1, "max_epochs": 2, "prompts": 3}
    (finding,) = check_config({"data": {"validation": one, **rest}}, {"data": {"validation": other, **rest}})
    assert "data.validation = " in finding.message


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (nodes(2), "2 nodes, and the case 1"),
        (nodes(gpus=4), "4 GPUs, and the partition's nodes 8"),
        (nodes(name="NVIDIA H200"), "NVIDIA H200, and the partition H100 80GB"),
        (nodes(mig="Enabled"), "MIG is Enabled"),
        ([{"host": "n", "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": "95830"}] * 8}], "95830 MiB"),
        ([], "0 nodes"),
    ],
)
def test_nodes_that_are_not_the_partitions(seen, message):
    findings = check_nodes(evidence(nodes=seen), case(), PARTITION)
    assert len(findings) == 1
    assert message in findings[0].message
    assert findings[0].failure == "infra"


def test_nodes_of_the_partition():
    assert check_nodes(evidence(), case(), PARTITION) == []
    assert check_nodes(evidence(nodes=nodes(gpus=0)), case(), CPU_PARTITION) == []
    assert check_nodes(evidence(), case(), CPU_PARTITION)


@pytest.mark.parametrize(
    ("name", "version", "same"),
    [
        ("torch", "2.11.7+cu128", True),
        ("torch", "2.12.0", False),
        ("torch", "2.1", False),
        ("vllm", "0.25.9", True),
        ("vllm", "0.26.0", False),
        ("cuda", "13.4", True),
        ("cuda", "12.9", False),
        ("driver", "9", True),  # the reference does not record it
    ],
)
def test_the_minor_version_of_the_stack_counts(name, version, same):
    findings = check_stack(evidence(stack={**STACK, name: version}), measured())
    assert (findings == []) == same


def test_what_was_not_recorded_is_not_comparable():
    assert "torch not recorded" in check_stack(evidence(stack={}), measured())[0].message
    assert check_stack(evidence(stack={}), published()) == []
    assert check_stack(evidence(stack={}), unmeasured()) == []
    assert "only informs" in check_stack(evidence(), published(stack={"torch": "2.7"}))[0].message


def test_another_image_is_another_stack():
    (finding,) = check_stack(evidence(image="b.sif"), measured())
    assert "not judged: stack (image b.sif, the reference's none)" in finding.message
    reference = measured()
    of_image = reference.model_copy(update={"source": reference.source.model_copy(update={"image": "b.sif"})})
    assert check_stack(evidence(image="b.sif"), of_image) == []
    assert check_stack(evidence(image="b.sif"), published()) == []


@pytest.mark.parametrize(
    ("driver", "hcas", "message"),
    [
        ("570.1", ["mlx5_0"], "the driver is 570.1, and the partition's is of branch 580"),
        (None, ["mlx5_0"], "the driver is not recorded"),
        ("580.65.06", ["mlx5_1"], "no adapter mlx5_0"),
        ("580.65.06", ["mlx5_0", "mlx5_1"], None),
    ],
)
def test_driver_and_adapters_are_the_partitions(driver, hcas, message):
    partition = with_rates(hcas=["mlx5_0"])
    partition = partition.model_copy(update={"gpu": partition.gpu.model_copy(update={"driver": "580"})})
    (node,) = nodes()
    gpus = [{**gpu, **({"driver": driver} if driver else {})} for gpu in node["gpus"]]
    findings = check_nodes(evidence(nodes=[{**node, "gpus": gpus, "hcas": hcas}]), case(), partition)
    assert [message in finding.message for finding in findings] == ([] if message is None else [True])


def test_how_the_machine_is_measured_is_free():
    expected = {"cluster": {"canary": "auto", "canary_file": None, "num_nodes": 2}}
    found = {"cluster": {"canary": "on", "canary_file": "job/canary.json", "num_nodes": 2}}
    assert check_config(expected, found) == []
    assert check_config(expected, {"cluster": {**found["cluster"], "num_nodes": 1}})
