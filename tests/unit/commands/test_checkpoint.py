import functools
import json
import shutil

import pytest

from tests.support.small_run import run_small
from tests.support.version_1 import as_version_1


@pytest.fixture
def run(run):
    return functools.partial(run, "checkpoint")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    run_small(directory, "checkpointing.keep_latest=3", "grpo.val_period=2")
    return directory


@pytest.fixture
def directory(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def steps(run, directory):
    return [row["step"] for row in json.loads(run("ls", directory, "--json")[1])["checkpoints"]]


def test_ls_shows_what_there_is_and_its_state(run, directory):
    shutil.copytree(directory / "checkpoints" / "step_6", directory / "checkpoints" / "step_9.tmp")
    shard = next((directory / "checkpoints" / "step_4").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    code, out, _ = run("ls", directory)
    assert code == 0
    assert "validation/accuracy" in out
    for state in ("complete", "damaged", "unfinished"):
        assert state in out
    assert f"step 4: {shard} has " in out
    assert out.endswith("it is truncated\n")
    rows = json.loads(run("ls", directory / "checkpoints", "--json")[1])["checkpoints"]
    assert [(row["step"], row["state"]) for row in rows] == [
        (2, "complete"), (4, "damaged"), (6, "complete"), (9, "unfinished"),
    ]  # fmt: skip
    assert rows[0]["bytes"] > 1e6
    assert "validation/accuracy" in rows[0]["metrics"]
    assert 0 <= rows[2]["saved_at"] - rows[0]["saved_at"] < 1000


def test_verify_names_the_file_that_was_altered_and_exits_1(run, directory):
    code, out, _ = run("verify", directory)
    assert code == 0
    assert [line.split(" (")[0] for line in out.splitlines()] == [f"step {step}: whole" for step in (2, 4, 6)]
    shard = next((directory / "checkpoints" / "step_4").glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    code, out, _ = run("verify", directory)
    assert code == 1
    assert f"step 4: {shard} was altered" in out
    assert "step 6: whole" in out
    assert run("verify", directory, "2", "latest")[0] == 0
    code, out, _ = run("verify", directory, "4", "--json")
    assert code == 1
    (result,) = json.loads(out)["checkpoints"]
    assert shard.name in result["problem"]
    code, _, err = run("verify", directory, "5")
    assert code == 2
    assert "no checkpoint of step 5; there are: 2, 4, 6" in err


def test_prune_keeps_to_the_rules_and_to_pins(run, directory):
    assert "nothing to remove" in run("prune", directory)[1]
    assert run("pin", directory, "2")[1].endswith("step_2 is pinned\n")
    assert run("pin", directory, "2")[1].endswith("is already pinned\n")
    options = ("--keep-latest", 1, "--keep-top-k", 0)
    code, out, _ = run("prune", directory, "--dry-run", *options)
    assert (code, out) == (0, f"would remove {directory / 'checkpoints' / 'step_4'}\n")
    assert steps(run, directory) == [2, 4, 6]
    assert run("prune", directory, *options, "--keep-every-n-steps", 4)[1] == "nothing to remove\n"
    code, out, _ = run("prune", directory, *options, "--json")
    assert json.loads(out)["removed"] == [str(directory / "checkpoints" / "step_4")]
    assert steps(run, directory) == [2, 6]
    assert json.loads(run("unpin", directory, 2, "--json")[1]) == {
        "path": str(directory / "checkpoints" / "step_2"), "pinned": False, "changed": True,
    }  # fmt: skip
    run("prune", directory, *options)
    assert steps(run, directory) == [6]


def test_prune_leaves_one_that_is_being_read(run, directory):
    from grpo.checkpoint.reading import open_checkpoint

    options = ("--keep-latest", 1, "--keep-top-k", 0)
    with open_checkpoint(directory / "checkpoints" / "step_2", None):
        code, out, _ = run("prune", directory, *options)
    assert code == 0
    assert "step_2, which is being read" in out
    assert steps(run, directory) == [2, 6]


def test_the_runs_own_rules_are_read_from_its_configuration(run, directory):
    config = directory / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("keep_latest: 3", "keep_latest: 1").replace("keep_top_k: 3", "keep_top_k: 0"))
    assert len(run("prune", directory / "checkpoints", "--dry-run")[1].splitlines()) == 2
    config.write_text(text.replace("keep_latest: 3", "keep_latest: 0"))
    code, _, err = run("prune", directory, "--dry-run")
    assert code == 2
    assert "checkpointing.keep_latest" in err


def test_export_takes_the_runs_own_tokenizer(run, directory, tmp_path):
    code, out, _ = run("export", directory, "latest", tmp_path / "hf")
    assert code == 0
    assert out.startswith(f"exported step 6 to {tmp_path / 'hf'}: 260.")
    assert out.endswith(" KiB of bfloat16 in 1 file\n")
    assert (tmp_path / "hf" / "tokenizer.json").is_file()
    code, _, err = run("export", directory, "4", tmp_path / "hf")
    assert code == 2
    assert "is not an empty folder" in err
    shutil.move(directory / "checkpoints", tmp_path / "alone")
    code, _, err = run("export", tmp_path / "alone", "4", tmp_path / "other")
    assert code == 2
    assert "--tokenizer" in err
    out = run("export", tmp_path / "alone", "4", tmp_path / "other", "--tokenizer", tmp_path / "hf", "--json")[1]
    assert json.loads(out)["step"] == 4


def test_a_run_saved_in_the_first_version_of_the_format_is_listed_verified_exported_and_resumed(
    run, directory, finished, tmp_path
):
    for path in directory.glob("checkpoints/step_*"):
        as_version_1(path)
        assert json.loads((path / "manifest.json").read_bytes())["schema_version"] == 1
    rows = json.loads(run("ls", directory, "--json")[1])["checkpoints"]
    assert [(row["step"], row["state"]) for row in rows] == [(2, "complete"), (4, "complete"), (6, "complete")]
    code, out, _ = run("verify", directory)
    assert code == 0
    assert out.count("whole") == 3
    for name, source in (("old", directory), ("new", finished)):
        assert run("export", source, "latest", tmp_path / name)[0] == 0
    assert (tmp_path / "old" / "model.safetensors").read_bytes() == (
        tmp_path / "new" / "model.safetensors"
    ).read_bytes()
    assert run_small(directory, "grpo.max_num_steps=7").outcome.steps == 7
    shard = next((directory / "checkpoints" / "step_4").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[::-1])
    code, out, _ = run("verify", directory, "4")
    assert code == 1
    assert f"step 4: {shard} was altered" in out


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_other_folders_are_refused_by_name(run, tmp_path, command):
    for path, message in ((tmp_path, "neither a run directory nor"), (tmp_path / "none", "no folder")):
        code, _, err = run(command, path)
        assert code == 2
        assert str(path) in err
        assert message in err
