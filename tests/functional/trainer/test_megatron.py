"""A whole run on the Megatron backend in one process, and its resume."""

import json

import pytest

from tests.support.small_run import run_small


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


@pytest.mark.timeout(300)
def test_both_backends_take_the_same_steps_and_megatron_resumes(tmp_path):
    backends = {
        "dtensor": [],
        "megatron": ["policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true"],
    }
    for name, overrides in backends.items():
        run_small(tmp_path / name, "grpo.max_num_steps=3", *overrides)
    ours, theirs = (losses(tmp_path / name) for name in ("megatron", "dtensor"))
    assert ours.keys() == theirs.keys()
    assert len(ours) == 3
    for step in ours:
        assert ours[step] == pytest.approx(theirs[step], rel=1e-3, abs=1e-5)
    for steps in (2, 3):
        run_small(tmp_path / "resumed", f"grpo.max_num_steps={steps}", *backends["megatron"])
    assert losses(tmp_path / "resumed") == ours
