"""What a worker process is given of the environment, and refusals before Ray is touched."""

import os

import pytest

from grpo.errors import WorkerError
from grpo.workers.groups import ray_session
from grpo.workers.groups.ray_session import RaySession, last_lines


def test_without_ray_the_error_names_the_extras(monkeypatch):
    monkeypatch.setattr(ray_session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WorkerError, match=r"grpo-matrix\[vllm\].*grpo-matrix\[cpu\].*launcher=in_process"):
        RaySession()


def test_only_named_variables_are_passed_on(monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    before = dict(os.environ)
    with ray_session.reduced_environment():
        assert "secret" not in os.environ.values()
        assert os.environ["PATH"] == before["PATH"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert dict(os.environ) == before


def test_last_lines_are_the_workers_own():
    printed = ":job_id:01\n:actor_name:RankHost\n" + "\n".join(map(str, range(60))) + "\nExtension modules: a"
    assert last_lines(printed).split("\n") == [str(number) for number in range(20, 60)]


def test_the_folder_of_a_session_is_short_enough_for_sockets(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(ray_session.tempfile, "tempdir", str(deep))
    first, second = ray_session._session_folder(), ray_session._session_folder()
    assert first != second
    for folder in (first, second):
        assert len(str(folder)) <= 40
        folder.rmdir()
