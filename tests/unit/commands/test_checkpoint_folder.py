import pytest

from grpo.checkpoint.manager import CheckpointManager
from grpo.commands.checkpoint_folder import find_folder
from grpo.errors import CheckpointError


def save(directory, *steps):
    manager = CheckpointManager(
        directory, keep_latest=9, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    for step in steps:
        manager.save(step, {}, {}, {})


@pytest.fixture
def make_run(tmp_path):
    def make(name, config):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
        (tmp_path / name / "config.yaml").write_text(f"# schema_version: 1\n{config}")
        return tmp_path / name

    return make


def test_the_folder_in_the_run_directory_comes_before_the_one_that_its_configuration_names(make_run, tmp_path):
    run = make_run("run", f"checkpointing: {{checkpoint_dir: {tmp_path}/before, keep_latest: 7}}\n")
    save(tmp_path / "before", 1)
    assert find_folder(run).directory == tmp_path / "before"
    save(run / "checkpoints", 2)
    assert find_folder(run).directory == run / "checkpoints"
    assert find_folder(run / "checkpoints").settings.keep_latest == 7
    assert find_folder(tmp_path / "before").settings.keep_latest == 2  # the default


def test_a_run_without_checkpoints_says_where_they_would_be(make_run, tmp_path):
    run = make_run("run", f"checkpointing: {{checkpoint_dir: {tmp_path}/none}}\n")
    with pytest.raises(CheckpointError, match="none"):
        find_folder(run)


def test_the_latest_is_the_newest_sound_one(tmp_path):
    save(tmp_path, 1, 5, 3)
    (tmp_path / "step_3" / "values.json").write_text("")
    folder = find_folder(tmp_path)
    assert folder.checkpoint("latest").step == 5
    assert folder.checkpoint("3").problem is not None
    with pytest.raises(CheckpointError, match="no checkpoint of step 2; there are: 1, 3, 5"):
        folder.checkpoint("2")
