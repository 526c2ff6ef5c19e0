import re
import shutil
from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix.load import find_matrices, load_matrix

DATA = Path(__file__).parents[3] / "matrices"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(DATA, tmp_path / "matrices")
    monkeypatch.chdir(tmp_path)
    return Path("matrices")


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("cluster.yaml", "  steps: 32", "  step: 32", r"cluster.yaml:16: unknown key step; did you mean steps\?"),
        (
            "cluster.yaml",
            "steps: 32",
            "steps: many",
            r'cluster.yaml:16: steps = "many": expected a whole number above 0',
        ),
        ("cluster.yaml", "{data: 8}", "{dat: 8}", r"unknown key parallel.dat; did you mean parallel.data\?"),
        (
            "cluster.yaml",
            "layer: cluster",
            "layer: clutser",
            r"cluster.yaml:3: layer = .*expected one of unit, functional",
        ),
        ("cluster.yaml", '"01:45:00"', '"1h"', "time_limit = .*hours:minutes:seconds"),
        ("cluster.yaml", "tier: L3", "tier: L9", "tier = .*expected one of L0, L1, L2, L3"),
        ("cluster.yaml", "[h100-80g, h200-141g]", "[h100-80gb]", r"no partition 'h100-80gb'; did you mean h100-80g\?"),
        ("cluster.yaml", "schema_version: 1", "schema_version: 2", "schema_version = 2: expected 1"),
        ("cluster.yaml", "8b-megatron:", "8b-dtensor:", "the key '8b-dtensor' is given twice, first on line"),
        ("cluster.yaml", "8b-megatron:", "8B_Megatron:", "is no id"),
        ("cluster.yaml", "8b-megatron:", "tiny-hf:", "the case tiny-hf is there already, at matrices/cluster.yaml"),
        ("cluster.yaml", "- timing/refit", "- train/loss", "train/loss is not for a reference"),
        ("tiny.yaml", "{upper: 0}", "{}", "rollout/reward_failures has neither lower nor upper"),
        (
            "tiny.yaml",
            "{upper: 0}",
            "{uper: 0}",
            "unknown key checks.bounds.rollout/reward_failures.uper; did you mean",
        ),
        (
            "tiny.yaml",
            "overrides:\n    - grpo",
            "overrides: !!python/name:os.system\n    - grpo",
            "not YAML|not allowed",
        ),
        ("partitions/cpu-local.yaml", "kind: venv", "kind: conda", r"environment.kind: expected one of venv, modules"),
        (
            "partitions/cpu-local.yaml",
            "cpus_per_task",
            "cpu_per_task",
            "cpu-local.yaml:7: unknown key slurm.cpu_per_task",
        ),
        (
            "partitions/cpu-local.yaml",
            "gpus: none",
            "gpus: none\n  account: 'a b'",
            "slurm.account = .*it is not one word",
        ),
        ("partitions/cpu-local.yaml", "OMP_NUM_THREADS", "A-B", "variables"),
        ("partitions/cpu-local.yaml", "slurm:", "proxy: http://me:pw@host\nslurm:", "proxy = .*URL without a password"),
        ("partitions/cpu-local.yaml", "gpu: null\n", "", "gpu is missing: expected a mapping, or null"),
        ("references/h100-80g/8b-dtensor.yaml", "value: 122", "value: -1", "expected a number above 0"),
        ("references/h100-80g/8b-dtensor.yaml", "value: 122", "value: .nan", "timing/total.value = NaN"),
        ("references/h100-80g/8b-dtensor.yaml", "value: 122", "value: 122, lower: 130", "do not ascend"),
        ("references/h100-80g/8b-dtensor.yaml", "timing/refit", "train/loss", "a reference is for timing/"),
        (
            "references/h100-80g/8b-dtensor.yaml",
            "kind: published",
            "kind: rumour",
            "source.kind: expected one of published",
        ),
        ("references/h200-141g/8b-dtensor.yaml", '"2026-11-30"', '"yesterday"', "expected a date such as 2026-01-31"),
        ("budgets.yaml", "weekly: 70", "weekly: -1", "gpu_hours.weekly = -1.*at least 0"),
    ],
)
def test_errors_name_file_line_key_and_the_nearest_valid_one(folder, file, old, new, message):
    change(folder / file, old, new)
    with pytest.raises(MatrixError) as caught:
        load_matrix(folder)
    assert re.search(message, str(caught.value)), caught.value
    assert file in str(caught.value)


def test_every_error_of_a_file_is_told_at_once(folder):
    change(folder / "partitions/cpu-local.yaml", "gpus: none", "gpu: none\n  acount: x")
    with pytest.raises(MatrixError, match=r"2 errors in the matrix:\n.*slurm.gpu;.*\n.*slurm.acount"):
        load_matrix(folder)


def test_a_reference_without_values_is_no_reference(folder):
    path = folder / "references/h200-141g/8b-dtensor.yaml"
    path.write_text(path.read_text() + "values: {timing/total: {value: 1, unit: s}}\n")
    with pytest.raises(MatrixError, match="expected no values"):
        load_matrix(folder)


def test_a_reference_of_no_case_is_an_error(folder):
    change(folder / "cluster.yaml", "8b-megatron:", "8b-megatrom:")
    with pytest.raises(MatrixError, match=r"8b-megatron.yaml: no case '8b-megatron'; did you mean 8b-megatrom\?"):
        load_matrix(folder)
    change(folder / "cluster.yaml", "8b-megatrom:", "8b-megatron:")
    (folder / "references/h100-80g/tiny-hf.yaml").write_text(
        (folder / "references/h100-80g/8b-dtensor.yaml").read_text()
    )
    with pytest.raises(MatrixError, match="the case tiny-hf does not name the partition 'h100-80g'"):
        load_matrix(folder)


def test_a_measured_figure_needs_its_spread(folder):
    path = folder / "references/h200-141g/8b-dtensor.yaml"
    path.write_text(
        "schema_version: 1\nsource: {kind: measured, runs: [a, b, c], nodes: [n], commit: c, image: null, "
        "stack: {torch: '2'}, date: '2026-11-30', approved_by: somebody}\nvalues: {timing/total: {value: 1, unit: s}}\n"
    )
    with pytest.raises(MatrixError, match="needs its spread"):
        load_matrix(folder)


MEASURED = (
    "schema_version: {version}\nsource: {{kind: measured, runs: [a, b, c], nodes: {nodes}, commit: c, image: null, "
    "stack: {{torch: '2'}}, date: '2026-11-30', approved_by: somebody}}\n"
    "values: {{timing/total: {{value: 1, unit: s, spread: 0.01}}}}\n"
)


def test_a_reference_of_the_schema_version_before_is_read(folder):
    path = folder / "references/h200-141g/8b-dtensor.yaml"
    path.write_text(MEASURED.format(version=1, nodes="[n, m]"))
    reference = load_matrix(folder).reference("h200-141g", "8b-dtensor")
    assert (reference.schema_version, reference.source.nodes) == (2, [["n", "m"]])
    path.write_text(MEASURED.format(version=2, nodes="[[n], [m], [n]]"))
    assert load_matrix(folder).reference("h200-141g", "8b-dtensor").source.nodes == [["n"], ["m"], ["n"]]


@pytest.mark.parametrize(
    ("version", "nodes", "message"), [(3, "[n]", "schema_version = 3"), (2, "[[n], [m]]", "2 node sets of 3 runs")]
)
def test_a_newer_reference_and_one_with_other_node_sets_are_refused(folder, version, nodes, message):
    (folder / "references/h200-141g/8b-dtensor.yaml").write_text(MEASURED.format(version=version, nodes=nodes))
    with pytest.raises(MatrixError, match=message):
        load_matrix(folder)


def test_exact_ids_alone(folder):
    matrix = load_matrix(folder)
    assert matrix.case("70b-megatron").nodes == 8
    with pytest.raises(MatrixError, match=r"no case '70b-megatro'; did you mean 70b-megatron\?"):
        matrix.case("70b-megatro")
    with pytest.raises(MatrixError, match="no partition 'nowhere'"):
        matrix.partition("nowhere")


def test_where_the_matrix_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_matrices() == DATA
    with pytest.raises(MatrixError, match=r"no matrix at elsewhere .*--matrices"):
        find_matrices(Path("elsewhere"))
