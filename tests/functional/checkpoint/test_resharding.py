"""Real ranks: what a layout saves it resumes to the bit; every other layout and the other backend take all of it."""

import collections

import pytest
import torch

from grpo.checkpoint.manifest import read_manifest
from grpo.checkpoint.stored import read_shards
from tests.support.ranks import run_cells

pytestmark = pytest.mark.timeout(300)
PRELOAD = ["tests.functional.checkpoint.resharding_checks"]
MODELS = [("llama", False, "float32"), ("qwen2", True, "float32"), ("qwen3", True, "bfloat16")]
# backend, tensor, pipeline, data parallelism; the rest of the four ranks are data parallel
LAYOUTS = [
    ("dtensor", 1, 1, None),
    ("dtensor", 2, 1, None),
    ("megatron", 1, 1, "distributed"),
    ("megatron", 2, 1, "overlapped"),
    ("megatron", 1, 2, "replicated"),
    ("megatron", 2, 2, "distributed"),
]
CASES = [(MODELS[index % len(MODELS)], layout) for index, layout in enumerate(LAYOUTS)]


def others(index):
    """Two layouts, one of them of the other backend where that can be."""
    return [LAYOUTS[(index + 1) % len(LAYOUTS)], LAYOUTS[(index + 3) % len(LAYOUTS)]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of four ranks, of each case: what was wrong, what each rank wrote, and the folder."""
    folders = [tmp_path_factory.mktemp("saved") for _ in CASES]
    cells = [
        ("interrupted", {"model": model, "layout": layout, "folder": str(folders[index]), "others": others(index)})
        for index, (model, layout) in enumerate(CASES)
    ]
    from tests.functional.checkpoint import resharding_checks

    results = list(run_cells(resharding_checks.run, cells, world=4, preload=PRELOAD, seconds=60))
    return list(zip(results, folders, strict=True))


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{case[1][0]}-{case[1][1]}-{case[1][2]}" for case in CASES])
def test_a_run_interrupted_anywhere_goes_on_to_the_bit_and_other_layouts_take_it(answers, index):
    for rank, (odd, _, _) in enumerate(answers[index][0]):
        assert odd == [], rank


@pytest.mark.parametrize("index", range(len(CASES)))
def test_every_file_is_written_by_one_rank_and_every_rank_writes(answers, index):
    results, folder = answers[index]
    writers = collections.Counter(name for _, opened, _ in results for name in opened)
    assert all(opened for _, opened, _ in results)
    assert set(writers.values()) == {1}
    manifest = read_manifest(folder / "step_3")
    assert set(writers) == {name for name in manifest.files if name.endswith(".safetensors")}
    weights = sum(each.nbytes for each in results[0][2].values())
    assert max(sum(manifest.files[name].bytes for name in opened) for _, opened, _ in results) < 0.6 * weights


@pytest.mark.parametrize("index", range(len(CASES)))
def test_the_files_hold_the_state_once_under_transformers_names(answers, index):
    results, folder = answers[index]
    stored = read_shards(folder / "step_3", read_manifest(folder / "step_3").tensors)
    kept = {name.removeprefix("policy/"): each for name, each in stored.items() if name.startswith("policy/")}
    state = results[0][2]
    assert kept.keys() == state.keys()
    assert all(torch.equal(kept[name], state[name]) for name in state)
    assert {name for name in stored if name not in {f"policy/{each}" for each in kept}} == {
        f"rng/rank_{rank:05d}/{kind}" for rank in range(4) for kind in ("torch", "python", "numpy")
    }


def test_worlds_of_other_sizes_take_it(answers):
    """Two ranks, in layouts that cut where the four did not, take what every layout of four saved."""
    from tests.functional.checkpoint import resharding_checks

    smaller = [
        ("megatron", 2, 1, "replicated"), ("megatron", 1, 1, "distributed"), ("dtensor", 2, 1, None),
        ("dtensor", 1, 1, None), ("megatron", 1, 2, "distributed"), ("megatron", 1, 1, "replicated"),
    ]  # fmt: skip
    cells = [
        ("taken", {"model": model, "layout": layout, "folder": str(folder), "step": 3})
        for (model, _), layout, (_, folder) in zip(CASES, smaller, answers, strict=True)
    ]
    for ranks, (results, _) in zip(
        run_cells(resharding_checks.run, cells, world=2, preload=PRELOAD, seconds=60), answers, strict=True
    ):
        for state, untaken in ranks:
            expected = results[0][2]
            assert untaken == []
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in state)
