import json
from statistics import fmean

import pytest

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.rollout.lengths import QUANTILES, quantiles, recorded_lengths, replayed_lengths

KEY = "policy.generation.replay_lengths"


def lengths_of(*overrides):
    return replayed_lengths(load_config("grpo_math_8b", list(overrides)).config)


def recorded(folder, *steps):
    lines = [json.dumps({"schema_version": 1, "step": at + 1, "lengths": step}) for at, step in enumerate(steps)]
    (folder / "lengths.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_by_default_lengths_are_sampled():
    assert lengths_of() is None


def test_a_made_distribution_has_the_stated_mean_and_a_tail():
    lengths = lengths_of(f"{KEY}.mean=795")
    assert fmean(lengths) == pytest.approx(795, abs=0.5)
    assert lengths == tuple(sorted(lengths))
    assert lengths[-1] == 4095
    assert lengths[len(lengths) // 2] == pytest.approx(795 * 0.693, rel=0.02)  # the exponential's median
    heavier = lengths_of(f"{KEY}.mean=795", f"{KEY}.shape=0.7")
    assert heavier[len(heavier) // 2] < lengths[len(lengths) // 2]


def test_without_a_shape_all_have_the_mean():
    assert lengths_of(f"{KEY}.mean=777", f"{KEY}.shape=null") == (777,)


@pytest.mark.parametrize("name", ["", "lengths.jsonl"])
def test_what_another_run_recorded(tmp_path, name):
    recorded(tmp_path, [5, 300], [20])
    assert lengths_of(f"{KEY}.file={tmp_path / name}") == (5, 20, 300)


def test_a_large_record_is_reduced_to_its_quantiles(tmp_path):
    steps = [[(7 * at + step) % 4000 + 1 for at in range(2000)] for step in range(5)]
    kept = replayed_lengths(load_config("grpo_math_8b", [f"{KEY}.file={recorded(tmp_path, *steps)}"]).config)
    everything = sorted(length for step in steps for length in step)
    assert len(kept) == QUANTILES
    assert kept[-1] == everything[-1]
    assert fmean(kept) == pytest.approx(fmean(everything), rel=2e-3)
    assert quantiles([1, 2, 9], 3) == (1, 2, 9)
    assert quantiles(range(10), 5) == (1, 3, 5, 7, 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"expected a run directory, or the lengths\.jsonl of one"),
        ("", "expected a line a step"),
        ('{"schema_version": 1, "step": 1}\n', "no lengths as a run writes them"),
        ('{"schema_version": 1, "step": 1, "lengths": [0]}\n', "whole numbers above 0"),
    ],
)
def test_a_file_without_lengths_is_refused_by_name(tmp_path, text, message):
    if text is not None:
        (tmp_path / "lengths.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        recorded_lengths(tmp_path / "lengths.jsonl")
