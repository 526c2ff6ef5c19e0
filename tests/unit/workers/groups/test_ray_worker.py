"""What a worker process is given of the environment, and the refusal without Ray."""

import os

import pytest

from grpo.errors import WorkerError
from grpo.workers.groups import ray_worker
from grpo.workers.groups.ray_worker import RayWorker


def test_without_ray_the_error_names_the_extras(monkeypatch):
    monkeypatch.setattr(ray_worker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WorkerError, match=r"grpo-matrix\[vllm\].*grpo-matrix\[cpu\].*launcher=in_process"):
        RayWorker(dict, timeout_s=1.0)


def test_only_named_variables_are_passed_on(monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    before = dict(os.environ)
    with ray_worker._reduced_environment():
        assert "secret" not in os.environ.values()
        assert os.environ["PATH"] == before["PATH"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert dict(os.environ) == before
