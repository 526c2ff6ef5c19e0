from pathlib import Path

import pytest
import yaml

from grpo.errors import ConfigError
from grpo.planning.partition import PARTITIONS, load_partition, partition_names


@pytest.mark.parametrize("name", partition_names())
def test_every_figure_of_a_shipped_partition_names_its_source(name):
    figures = load_partition(name).figures()
    assert len(figures) == 16
    for figure in figures.values():
        assert figure.value > 0
        assert any(
            word in figure.source
            for word in ("datasheet", "measured", "total_memory", "assumed", "bound", "line", "vLLM")
        )


def test_the_engine_constants_are_the_line_through_the_measured_points():
    # 64, 256 and 1024 sequences took 4.7, 11.5 and 37 ms a step on a 1B Llama of 1.236e9 multiplying weights; contexts
    # were 256 tokens on average, of 2 x 16 x 8 x 64 bfloat16 numbers each.
    points, partition = {64: 4.7e-3, 256: 11.5e-3, 1024: 37e-3}, load_partition("h200-141g")
    mean_n, mean_s = sum(points) / 3, sum(points.values()) / 3
    slope = sum((n - mean_n) * (s - mean_s) for n, s in points.items()) / sum((n - mean_n) ** 2 for n in points)
    memory = partition.memory_bandwidth.value
    assert partition.engine_sequence_s.value == pytest.approx(slope - 256 * 2 * 16 * 8 * 64 * 2 / memory, rel=0.01)
    assert partition.engine_step_s.value == pytest.approx(mean_s - slope * mean_n - 2 * 1.236e9 / memory, rel=0.02)


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
