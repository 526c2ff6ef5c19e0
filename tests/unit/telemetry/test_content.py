from grpo.telemetry.content import gather
from grpo.telemetry.reader import read_run
from grpo.telemetry.run_directory import RunDirectory
from tests.support.synthetic_run import write_synthetic_run


def test_key_numbers_of_a_whole_run(tmp_path):
    content = gather(read_run(write_synthetic_run(tmp_path / "run", steps=30)))
    tiles = {tile.label: (tile.value, tile.detail) for tile in content.tiles}
    assert list(tiles) == ["Accuracy", "Reward", "Steps", "Time in steps", "Tokens/s/GPU", "Completion", "Peak memory"]
    assert tiles["Steps"] == ("30", "of at most 30")
    assert tiles["Accuracy"][1].startswith("validation · chance 0.19 · best ")
    assert ("grpo.num_prompts_per_step", "32") in content.config
    assert content.subtitle.startswith("tiny · tiny-digits · 214 k parameters · cpu · started 2")
    assert ("command", "grpo train tiny grpo.seed=0") in content.environment
    assert content.warnings == []


def test_what_is_wrong_is_said_first(tmp_path):
    run = RunDirectory.open(tmp_path / "run", "new", name="n", config_yaml="a: 1", command=[])
    run.write_metrics(1, {"train/loss": float("nan"), "rollout/reward_failures": 3})
    run.finish("failed", reason="ValueError: x", exit_code=1)
    assert gather(read_run(run.path)).warnings == [
        "The run has failed (exit code 1): ValueError: x",
        "Not finite: train/loss at step 1.",
        "3 completions could not be scored.",
    ]


def test_long_samples_are_cut(tmp_path):
    run = RunDirectory.open(tmp_path / "run", "new", name="n", config_yaml="a: 1", command=[])
    run.write_sample(1, completion="x" * 5000, reward=0.123456)
    run.finish("completed")
    (sample,) = gather(read_run(run.path)).samples
    assert len(sample["completion"]) == 600
    assert sample["completion"].endswith("x…")
    assert sample["reward"] == "0.1235"
