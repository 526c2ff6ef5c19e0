import pytest

from benchmarks.gpu.goals import judged, missed
from benchmarks.gpu.page import markdown
from benchmarks.gpu.parts import comparison
from benchmarks.gpu.work import batch_of
from grpo.models.flops import Flops

ABOUT = {"part": "dtensor-8b", "shape": "a model", "backend": "dtensor", "cap": 64}
MACHINE = {
    "part": "machine",
    "kind": "machine",
    "versions": {"torch": "2", "vllm": None},
    "python": "3.12",
    "gpu": None,
    "argv": [],
}


def training(ours, bare):
    found = comparison({"ours": ours, "bare": bare}, Flops(6e14, 1e14, 3e14), batch_of([5, 7], 50), 2)
    return ABOUT | found


def test_the_ratio_is_that_of_medians_and_its_spread_that_of_rounds():
    found = training([1.0, 2.0, 4.0], [1.0, 1.0, 5.0])
    assert found["ratio"] == {"of_medians": 2.0, "low": 0.8, "high": 2.0}
    assert found["mfu"]["ours"] == pytest.approx(1e15 / 2 / 989.4e12)
    assert (found["tokens"], found["sequences"], found["packs"]) == (10, 2, 2)


def test_goals_are_judged_where_a_record_has_their_figure():
    good, slow = training([1.0], [1.0]), training([10.0], [5.0])
    assert [reached for *_, reached in judged(good)] == [True, True]
    assert [reached for *_, reached in judged(slow)] == [False, False]
    memory = ABOUT | {"kind": "memory", "error": -0.11}
    assert missed([good, slow, memory]) == [
        "dtensor-8b: training time over a bare loop's, at most 1.02: 2.000",
        f"dtensor-8b: MFU, at least 0.45: {1e15 / 10 / 989.4e12:.3f}",
        "dtensor-8b: planned over measured peak memory less one, within 0.1: -0.110",
    ]
    assert not missed([ABOUT | {"kind": "memory", "error": None}])


def test_of_an_offloaded_update_the_passes_are_what_is_left_and_are_held_against_the_bus():
    record = ABOUT | {
        "kind": "offloaded", "packs": 4, "threads": 16, "seconds": {"norm": 0.1, "clip": 0.0, "step": 0.4},
        "update": 2.5, "parameter_bytes": 2**30, "to_gpu": 8 * 2**30, "to_host": 2 * 2**30,
    }  # fmt: skip
    text = markdown([record])
    assert "the passes of 4 packs take 2.000; the optimizer's, on 16 threads of the CPU: norm 0.100, clip 0.000" in text
    assert "1.0 GiB of float32 cross the bus to the GPU twice a pack, 1.000 s at the 8.6 GB/s" in text
    assert "back once, 2.000 s at 2.1: both ways at once, the passes are 1.00 of that." in text


def test_the_page_shows_every_kind_of_record():
    kinds = {name: {"seconds": 0.25, "flops": 1e14} for name in ("attention", "optimizer")}
    records = [
        MACHINE,
        training([1.0, 2.0, 4.0], [1.0, 1.0, 5.0]),
        ABOUT
        | {
            "kind": "memory",
            "planned": {"parameters": 2**31},
            "planned_total": 2**31,
            "measured": 2**31,
            "error": 0.0,
            "reserved": 2**32,
        },
        ABOUT | {"kind": "plan", "planned": {"parameters": 2**40}, "fits": False},
        ABOUT | {"kind": "waits", "waits": {"here.py:3": 2}},
        ABOUT
        | {
            "kind": "scoring",
            "seconds": {"ours": [2.0], "bare": [1.0]},
            "ratio": {"of_medians": 0.5, "low": 0.5, "high": 0.5},
            "mfu": {"ours": 0.2, "bare": 0.4},
        },
        ABOUT
        | {
            "kind": "shares",
            "side": "ours",
            "packs": 4,
            "wall": 1.0,
            "kinds": kinds,
            "attention_flops": 2e14,
            "model_flops": 4e14,
        },
        {
            "part": "step",
            "kind": "step",
            "shape": "a model",
            "engine": "hf",
            "seconds": {"total": 1.0},
            "steps": 4,
            "around": {"median": 0.01, "low": 0.0, "high": 0.02},
        },
        {"part": "limits", "kind": "limits", "products": {"8192^3": 8e14}, "copy": 4e12, "shape": "a model"},
        {"part": "megatron-1b", "kind": "failure", "traceback": "Traceback: it broke"},
        {"part": "megatron-1b", "kind": "took", "seconds": 3.0},
        {"part": "other", "kind": "skipped", "left": 3.0, "needs": 60.0},
    ]
    page = markdown(records)
    for text in (
        "| ours | 2.0000 (1.0000 - 4.0000, n = 3) | 0.505 |", "ours / bare: 2.000 (rounds: 0.800 - 2.000)",
        "planned 2.0 GiB (parameters 2.0), measured 2.0 GiB, error +0.0 %", "1024.0 GiB planned: not tried",
        "- here.py:3: 2 times", "speed of ours / bare: 0.500", "500.0 no kernel runs; 400 TFLOP/s",
        "a gap of 500.0 ms", "| attention | 250.0 | 25.0 % | 800 | 0.0 |", "1.00 % of a step (0.00 - 2.00)",
        "8192^3 800", "Traceback: it broke", "Not begun: 3 s", "| dtensor-8b, 64 | MFU, at least 0.45 | 0.505 | yes |",
    ):  # fmt: skip
        assert text in page, text
