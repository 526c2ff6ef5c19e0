import re
import statistics
from pathlib import Path

import pytest
import yaml

from benchmarks.planned_rows import VLLMS_OWN
from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.planning.parameters import load_model_shapes
from grpo.planning.partition import PARTITIONS, load_partition, partition_names
from grpo.planning.plan import Assumptions, make_plan


@pytest.mark.parametrize("name", partition_names())
def test_every_figure_of_a_shipped_partition_names_its_source(name):
    figures = load_partition(name).figures()
    assert len(figures) == 17
    for figure in figures.values():
        assert figure.value > 0
        assert any(word in figure.source for word in ("datasheet", "measured", "total_memory", "assumed", "bound"))


GENERATION, WORKERS = (
    (Path(__file__).parents[3] / "docs" / "measurements" / name).read_text(encoding="utf-8")
    for name in ("h200-generation.md", "h200-policy-workers.md")
)


def without_overhead(sequences):
    """Milliseconds a token step that the plan has for the measured run, the engine's own work left out."""
    overrides = [
        "policy.model_name=meta-llama/Llama-3.2-1B", "cluster.gpus_per_node=1", "grpo.num_generations_per_prompt=16",
        f"grpo.num_prompts_per_step={sequences // 16}", f"policy.train_global_batch_size={sequences}",
        "policy.generation.max_new_tokens=128", "policy.generation.min_new_tokens=128",
    ]  # fmt: skip
    config = load_config("grpo_math_1b", overrides).config
    found = make_plan(
        load_model_shapes(config.policy.model_name), config, load_partition("h200-141g"), Assumptions(prompt_tokens=128)
    ).generation
    assert (found.concurrent, found.steps) == (sequences, 128)
    return (found.seconds - found.overhead_s) / found.steps * 1e3


@pytest.mark.parametrize(("column", "figures"), [
    (1, {name: load_partition("h200-141g").figures()[name] for name in VLLMS_OWN}),
    (1, {name: load_partition("h100-80g").figures()[name] for name in VLLMS_OWN}),
    (3, VLLMS_OWN),
], ids=["H200", "H100", "vLLM's own"])  # fmt: skip
def test_the_engine_constants_are_the_line_through_the_measured_points(column, figures):
    points = {}
    for sequences in (64, 256, 1024):
        cells = re.search(rf"^\| {sequences} \|.*$", GENERATION, re.MULTILINE)[0].strip("| ").split("|")
        measured = statistics.mean(map(float, cells[column].split(",")))
        points[sequences] = measured - without_overhead(sequences)
    slope, intercept = statistics.linear_regression(list(points), list(points.values()))
    assert figures["engine_sequence_s"].value == pytest.approx(slope / 1e3, rel=0.02)
    assert figures["engine_step_s"].value == pytest.approx(intercept / 1e3, rel=0.02)


@pytest.mark.parametrize("name", partition_names())
def test_the_rates_of_products_and_attention_are_those_of_the_measured_update(name):
    table = WORKERS.partition("Where ours spends an update of 4 packs, Llama 3.1 8B")[2].partition("\n\n(")[0]
    rows = {
        kind: (float(ms), float(rate))
        for kind, ms, rate in re.findall(r"^\| (\D+) \| (\S+) \| .* % \| (\d+) \|", table, re.MULTILINE)
    }
    attention, partition = rows.pop("attention"), load_partition(name)
    assert sorted(rows) == ["MLP's products", "attention's projections", "output layer's products"]
    mean = sum(ms * rate for ms, rate in rows.values()) / sum(ms for ms, _ in rows.values())
    assert partition.matmul_flops.value == pytest.approx(mean * 1e12, rel=0.002)
    assert partition.attention_flops.value == attention[1] * 1e12


def changed(tmp_path, change):
    values = yaml.safe_load((PARTITIONS / "h100-80g.yaml").read_text())
    change(values)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_file_of_the_users_own(tmp_path):
    path = changed(tmp_path, lambda values: values["network"].update(value=25e9, source="measured here"))
    found = load_partition(str(path))
    assert (found.name, found.network.value) == ("mine", 25e9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("nvlink"), "nvlink is missing"),
        (lambda values: values.update(speed=1), "speed is unknown"),
        (lambda values: values["nvlink"].pop("source"), "nvlink = .*expected {value: NUMBER, source: TEXT}"),
        (lambda values: values["nvlink"].update(value=0), "nvlink.value = 0: expected a number above 0"),
        (lambda values: values["nvlink"].update(value="fast"), "nvlink.value = 'fast'"),
        (lambda values: values.update(schema_version=2), "schema_version: 1"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        load_partition(str(changed(tmp_path, change)))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="--partition a100: there is none of this name; one of h100-80g, h200-141g"):
        load_partition("a100")


@pytest.mark.parametrize("name", partition_names())
def test_the_matrix_says_the_same_of_a_partition(name):
    planned, site = load_partition(name), load_site(name)
    assert site["gpu"]["memory_gib"] == round(planned.memory_bytes.value / 2**30, 1)
    assert site["gpu"]["bf16_dense_tflops"] * 1e12 == planned.peak_flops.value
    assert site["gpus_per_node"] == planned.gpus_per_node.value


def load_site(name):
    return yaml.safe_load((Path(__file__).parents[3] / "matrices" / "partitions" / f"{name}.yaml").read_text())
