import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.errors import CheckpointError, ConfigError, DataError, ModelError, RewardError, TelemetryError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import Residence, Resource
from grpo.telemetry.reader import read_run
from grpo.trainer import loop
from tests.support.small_run import run_small

ROOT = Path(__file__).parents[3]
WALL_CLOCK = ("timing/", "performance/", "memory/")


def metrics_of(directory):
    return [
        {name: value for name, value in line.items() if not name.startswith(WALL_CLOCK)}
        for line in (json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines())
    ]


def weights_of(directory, step):
    manager = CheckpointManager(
        directory / "checkpoints", keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    path = next(info.path for info in manager.list() if info.step == step)
    from safetensors.torch import load_file

    return {name: value for file in sorted(path.glob("*.safetensors")) for name, value in load_file(file).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "whole"
    return run_small(directory), directory


def test_a_run_directory_tells_the_whole_story(whole):
    finished, directory = whole
    run = read_run(directory)
    assert run.manifest.state == "completed"
    assert [line["step"] for line in metrics_of(directory)] == [0, 1, 2, 3, 4, 5, 6]
    assert finished.outcome.steps == 6
    assert finished.report.is_file()
    assert finished.summary.startswith("accuracy 0.")
    assert {"started", "parts_started", "validation", "checkpoint", "ended"} <= {event["kind"] for event in run.events}


def lengths_of(directory):
    return [json.loads(text)["lengths"] for text in (directory / "lengths.jsonl").read_text().splitlines()]


def test_the_lengths_of_one_run_are_replayed_by_another(tmp_path):
    """Whatever either says; what a drawn length ends counts as ended, and what the limit cuts as truncated."""
    more = ("policy.max_total_sequence_length=24", "policy.generation.max_new_tokens=12", "grpo.max_num_steps=3")
    run_small(tmp_path / "first", *more)
    assert [len(step) for step in lengths_of(tmp_path / "first")] == [12, 12, 12]
    made = ("policy.generation.replay_lengths.mean=5", *more)
    run_small(tmp_path / "made", *made, "grpo.seed=1")
    replayed = (f"policy.generation.replay_lengths.file={tmp_path / 'made'}", "env.exact_match.verifier=coin", *more)
    run_small(tmp_path / "again", *replayed)
    recorded, drawn = (
        [length for step in lengths_of(tmp_path / name) for length in step] for name in ("made", "again")
    )
    assert set(drawn) <= set(recorded)
    assert len(set(drawn)) > 4
    assert sum(drawn) / len(drawn) == pytest.approx(sum(recorded) / len(recorded), rel=0.15)
    lines = [line for line in metrics_of(tmp_path / "again") if line["step"] > 0]
    for line, lengths in zip(lines, lengths_of(tmp_path / "again"), strict=True):
        assert line["rollout/truncated_fraction"] == pytest.approx(lengths.count(12) / len(lengths))
        assert line["train/token_mult_prob_error"] == pytest.approx(1, abs=1e-4)  # stops are sampled like any token
        assert 0 < line["train/raw_reward"] < 1


def test_every_second_of_a_step_is_accounted_for(whole):
    for text in (whole[1] / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        phases = sum(value for name, value in line.items() if name.startswith("timing/") and name.count("/") == 1)
        assert phases - line["timing/total"] == pytest.approx(line["timing/total"])
        assert line["timing/other"] >= 0


@pytest.mark.parametrize("stop_after", [2, 3, 5])
def test_a_resumed_run_continues_to_the_bit(whole, tmp_path, stop_after):
    directory = tmp_path / "run"
    run_small(directory, f"grpo.max_num_steps={stop_after}")
    run_small(directory)
    assert metrics_of(directory) == metrics_of(whole[1])
    resumed, uninterrupted = weights_of(directory, 6), weights_of(whole[1], 6)
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in resumed)


@pytest.mark.parametrize("overrides", [
    ["loss_fn.force_on_policy_ratio=false", "policy.train_global_batch_size=6", "policy.train_micro_batch_size=2"],
    ["loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.kind=gspo",
     "loss_fn.aggregation=seq_mean_token_mean"],
    ["policy.precision=bfloat16", "policy.sequence_packing.enabled=true"],
])  # fmt: skip
def test_resume_is_exact_for_other_options_too(tmp_path, overrides):
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    run_small(uninterrupted, "grpo.max_num_steps=4", *overrides)
    run_small(interrupted, "grpo.max_num_steps=2", *overrides)
    run_small(interrupted, "grpo.max_num_steps=4", *overrides)
    assert metrics_of(interrupted) == metrics_of(uninterrupted)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole, tmp_path):
    run_small(tmp_path / "same")
    run_small(tmp_path / "other", "grpo.seed=7")
    assert metrics_of(tmp_path / "same") == metrics_of(whole[1])
    assert metrics_of(tmp_path / "other") != metrics_of(whole[1])


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_saves_and_the_same_command_goes_on(whole, tmp_path, monkeypatch, name):
    real = loop.Trainer._step

    def signalled(self, step):
        if step == 3:
            os.kill(os.getpid(), getattr(signal, name))
        return real(self, step)

    monkeypatch.setattr(loop.Trainer, "_step", signalled)
    finished = run_small(tmp_path / "run", "checkpointing.save_period=100")
    assert (finished.outcome.reason, finished.outcome.stopped_by, finished.outcome.steps) == ("stopped", name, 3)
    assert read_run(tmp_path / "run").manifest.state == "stopped"
    monkeypatch.setattr(loop.Trainer, "_step", real)
    assert run_small(tmp_path / "run", "checkpointing.save_period=100").outcome.reason == "steps"
    lines = metrics_of(tmp_path / "run")
    assert [line["train/loss"] for line in lines[1:]] == [line["train/loss"] for line in metrics_of(whole[1])[1:]]


def test_a_finished_run_is_neither_repeated_nor_overwritten(whole, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(whole[1], directory)
    with pytest.raises(ConfigError, match=r"grpo.max_num_steps=6: this run has 6 steps already"):
        run_small(directory)
    run_small(directory, "grpo.max_num_steps=1", fresh=True)
    assert len(metrics_of(directory)) == 2
    assert len(metrics_of(tmp_path / "run.1")) == 7


def test_a_checkpoint_of_another_model_is_refused_by_what_differs(tmp_path, whole):
    directory = tmp_path / "run"
    shutil.copytree(whole[1], directory)
    with pytest.raises(CheckpointError, match="vocab_size"):
        run_small(directory, "policy.model_name=tiny-letters", "data.validation=null", "grpo.val_period=0",
                  "grpo.val_at_start=false", "data.train.function=tests.support.tasks:letters",
                  "~data.train.kwargs", "grpo.max_num_steps=8")  # fmt: skip


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(whole, tmp_path):
    directory = tmp_path / "run"
    run_small(directory, "checkpointing.keep_latest=3")
    (latest,) = (directory / "checkpoints").glob("step_6")
    shard = next(latest.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-8])
    run_small(directory, "grpo.max_num_steps=7")
    refused = [event for event in read_run(directory).events if event["kind"] == "checkpoint_refused"]
    assert shard.name in refused[0]["reason"]
    assert metrics_of(directory)[:7] == metrics_of(whole[1])


def test_a_run_without_a_checkpoint_is_not_overwritten(tmp_path):
    run_small(tmp_path / "run", "checkpointing.enabled=false", "grpo.max_num_steps=1")
    with pytest.raises(TelemetryError, match="holds a run already"):
        run_small(tmp_path / "run", "checkpointing.enabled=false", "grpo.max_num_steps=1")


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["policy.model_name=./nowhere"], ModelError, "policy.model_name=./nowhere"),
        (["policy.random_weights=false"], ModelError, "safetensors"),
        (["policy.tokenizer.name=tiny-letters"], ModelError, "55 tokens but the model's vocab_size is 14"),
        (["policy.max_total_sequence_length=65"], ConfigError, "64 positions"),
        (["data.train.function=nothing.here:f"], DataError, "nothing.here"),
        (["data.max_input_seq_length=3"], DataError, "the longest .* with 8"),
        (["env.exact_match.verifier=nothing.here:f"], RewardError, "nothing.here"),
        (["cluster.gpus_per_node=1", "cluster.cpu_threads=null"], ConfigError, "torch finds no CUDA GPU"),
        (
            [
                "policy.megatron_cfg.enabled=true",
                "policy.dtensor_cfg.enabled=false",
                "cluster.gpus_per_node=2",
                "cluster.cpu_threads=null",
                "policy.megatron_cfg.context_parallel_size=2",
            ],
            ConfigError,
            "policy.megatron_cfg.context_parallel_size=2",
        ),
    ],
)
def test_bad_input_is_an_error_before_a_run_directory_exists(tmp_path, overrides, error, message):
    with pytest.raises(error, match=message):
        run_small(tmp_path / "run", *overrides)
    assert not (tmp_path / "run").exists()


HANGING_RUN = """
import sys, threading
from pathlib import Path
from grpo.trainer import loop
from tests.support.small_run import run_small

def never_ends(*_):
    threading.Event().wait()

loop.training_batch = never_ends
run_small(Path(sys.argv[1]), "cluster.step_timeout_s=1.5")
"""


def test_a_step_that_hangs_ends_the_run_with_its_stacks(tmp_path):
    command = [sys.executable, "-c", HANGING_RUN, str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=100, check=False)
    assert ended.returncode == 1
    assert " in never_ends" in ended.stderr


def test_a_failure_in_mid_run_is_on_record_and_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "training_batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path / "run")
    manifest = read_run(tmp_path / "run").manifest
    assert (manifest.state, manifest.reason) == ("failed", "ZeroDivisionError: division by zero")


def test_a_disk_that_fills_up_fails_the_run_and_keeps_what_was_saved(tmp_path, monkeypatch):
    from grpo.checkpoint import files

    real, calls = files.write_file, []

    def fills_up(path, chunks, **options):
        calls.append(path)
        if "step_4" in str(path):
            raise OSError(28, "No space left on device", str(path))
        return real(path, chunks, **options)

    monkeypatch.setattr(files, "write_file", fills_up)
    with pytest.raises(CheckpointError, match=r"step_4.*No space left on device"):
        run_small(tmp_path / "run")
    monkeypatch.setattr(files, "write_file", real)
    assert read_run(tmp_path / "run").manifest.state == "failed"
    assert run_small(tmp_path / "run").outcome.steps == 6
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [0, 1, 2, 3, 4, 5, 6]


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_anew_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "training_batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path / "run")
    monkeypatch.undo()
    assert run_small(tmp_path / "run").outcome.steps == 6
    assert read_run(tmp_path / "run.1").manifest.state == "failed"


def test_a_signal_before_the_first_step_ends_without_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.Trainer, "_validate", lambda *_: os.kill(os.getpid(), signal.SIGTERM) or {})
    outcome = run_small(tmp_path / "run").outcome
    assert (outcome.reason, outcome.steps, outcome.saved) == ("stopped", 0, False)
    monkeypatch.undo()
    assert run_small(tmp_path / "run").outcome.saved


def test_prompts_without_an_informative_group_at_the_end_still_close_the_run(tmp_path, monkeypatch):
    from grpo.rollout.on_demand import OnDemandSource

    real, calls = OnDemandSource._informative, []

    def uninformative_from_the_third(self, batch):
        calls.append(batch)
        return real(self, batch) if len(calls) <= 3 else []

    monkeypatch.setattr(OnDemandSource, "_informative", uninformative_from_the_third)
    outcome = run_small(
        tmp_path / "run", "data.train.kwargs.count=15", "grpo.max_num_epochs=1", "grpo.val_at_end=true",
        "grpo.val_period=100", "checkpointing.save_period=100",
    ).outcome  # fmt: skip
    assert (outcome.reason, outcome.steps, outcome.saved) == ("epochs", 3, True)
    assert [event["step"] for event in read_run(tmp_path / "run").events if event["kind"] == "validation"] == [0, 3]


def test_a_checkpoint_folder_that_cannot_be_made_is_known_before_the_first_step(tmp_path, monkeypatch):
    from grpo.checkpoint import files

    def read_only(path):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(files, "make_folder", read_only)
    monkeypatch.setattr(loop.Trainer, "run", lambda *_: pytest.fail("it started"))
    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*elsewhere: Read-only file system"):
        run_small(tmp_path / "run", f"checkpointing.checkpoint_dir={tmp_path}/elsewhere")


OFFLOADS = (
    "loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.force_on_policy_ratio=false", "policy.offload_reference=true",
    "policy.generation.colocated.offload_optimizer=true", "policy.generation.colocated.offload_parameters=true",
    "policy.generation.colocated.sleep_level=2",
)  # fmt: skip


def test_where_things_are_changes_no_number_and_every_move_has_its_place_in_the_step(tmp_path):
    run_small(tmp_path / "moved", "grpo.max_num_steps=4", *OFFLOADS)
    run_small(tmp_path / "still", "grpo.max_num_steps=4", *OFFLOADS[:2])
    assert metrics_of(tmp_path / "moved") == metrics_of(tmp_path / "still")
    lines = [json.loads(text) for text in (tmp_path / "moved" / "metrics.jsonl").read_text().splitlines()]
    parts = {name for line in lines[2:] for name in line if name.startswith("timing/") and name.count("/") == 2}
    assert parts >= {
        "timing/refit/offload", "timing/refit/export", "timing/refit/load", "timing/refit/wake",
        "timing/generation/sleep", "timing/logprobs/onload", "timing/policy_training/offload",
        "timing/policy_training/onload",
    }  # fmt: skip
    still = (tmp_path / "still" / "metrics.jsonl").read_text()
    assert not any(part in still for part in ("offload", "onload", "sleep", "wake"))


def test_an_offload_that_the_loop_is_made_to_do_after_a_checkpoint_ends_the_run(tmp_path, monkeypatch):
    save = loop.Trainer._save

    def save_and_offload(trainer, step, metrics):
        save(trainer, step, metrics)
        trainer._parts.policy.move(Resource.OPTIMIZER_STATE, Residence.CPU)

    monkeypatch.setattr(loop.Trainer, "_save", save_and_offload)
    with pytest.raises(PlacementError, match="optimizer_state is on gpu and cannot be moved to cpu"):
        run_small(tmp_path / "never", "grpo.max_num_steps=4")
    with pytest.raises(
        PlacementError, match=r"entering phase .* optimizer_state is on cpu, but placement has left it on gpu"
    ):
        run_small(tmp_path / "elsewhere", "grpo.max_num_steps=4", *OFFLOADS)
