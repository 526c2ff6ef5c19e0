import socket
import sys
import types

import pytest

from grpo.config.schema.run import Logger, MlflowCfg, WandbCfg
from grpo.errors import TelemetryError
from grpo.telemetry import loggers
from grpo.telemetry.loggers import MlflowLogger, TensorBoardLogger, WandbLogger, build_loggers, close_all, reachable
from grpo.telemetry.secrets import Redactor


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_reads_what_was_logged(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log(1, {"train/reward": 0.5, "train/kl": None})
    logger.log(2, {"train/reward": 0.75})
    assert logger.close(failed=False) == f"tensorboard --logdir {tmp_path}"
    assert scalars(tmp_path) == {"train/reward": [(1, 0.5), (2, 0.75)]}


def test_tensorboard_drops_what_a_resume_repeats(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers.time, "time", iter(range(1000, 2000)).__next__)
    first = TensorBoardLogger(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"x": float(step)})
    first.close(failed=True)
    second = TensorBoardLogger(tmp_path, resume_step=1)
    second.log(2, {"x": 20.0})
    second.close(failed=False)
    assert scalars(tmp_path) == {"x": [(1, 1.0), (2, 20.0)]}


def test_tensorboard_names_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, match="cannot write"):
        TensorBoardLogger(tmp_path / "file")


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_a_missing_package_names_its_extra(tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    config = Logger(**{f"{library}_enabled": True, "tensorboard_enabled": False})
    with pytest.raises(TelemetryError, match=rf"pip install 'grpo-matrix\[{library}\]'"):
        build_loggers(config, tmp_path, name="n", run_config={})


def fake_wandb(calls):
    run = types.SimpleNamespace(
        dir="/runs/wandb/offline-run-1/files",
        log=lambda values, step: calls.append(("log", step, values)),
        finish=lambda exit_code: calls.append(("finish", exit_code)),
    )
    return types.SimpleNamespace(
        init=lambda **options: calls.append(("init", options)) or run, Settings=lambda **options: options
    )


@pytest.mark.parametrize(("online", "mode"), [(True, "online"), (False, "offline")])
def test_wandb_is_offline_without_network_and_says_how_to_sync(tmp_path, monkeypatch, online, mode):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(loggers, "reachable", lambda server: online)
    logger = WandbLogger(tmp_path, WandbCfg(project="p"), name="n", run_config={"a": 1})
    logger.log(3, {"x": 1.0, "y": None})
    command = logger.close(failed=True)
    assert command == (None if online else "wandb sync /runs/wandb/offline-run-1")
    options = calls[0][1]
    assert (options["mode"], options["project"], options["name"], options["config"]) == (mode, "p", "n", {"a": 1})
    assert calls[1:] == [("log", 3, {"x": 1.0}), ("finish", 1)]


def test_a_configuration_leaves_without_its_secrets(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = Logger(wandb_enabled=True, tensorboard_enabled=False)
    secret = {"env": {"api_key": "planted", "url": "x-planted-2"}}
    build_loggers(config, tmp_path, name="n", run_config=secret, redactor=Redactor(["planted-2"]))
    assert calls[0][1]["config"] == {"env": {"api_key": "[removed]", "url": "x-[removed]"}}


def fake_mlflow(calls):
    class Client:
        def __init__(self, tracking_uri):
            calls.append(("uri", tracking_uri))

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return "7"

        def create_run(self, experiment, run_name):
            calls.append(("run", experiment, run_name))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

        def log_param(self, run, key, value):
            calls.append(("param", key, value))

        def log_batch(self, run, metrics):
            calls.append(("batch", [(name, value, step) for name, value, _, step in metrics]))

        def set_terminated(self, run, status):
            calls.append(("end", status))

    entities = types.SimpleNamespace(Metric=lambda *fields: fields)
    return types.SimpleNamespace(MlflowClient=Client, entities=entities), entities


@pytest.mark.parametrize(("server", "local"), [("", True), ("http://mlflow:5000", True), ("file:///elsewhere", False)])
def test_mlflow_stores_locally_without_its_server(tmp_path, monkeypatch, server, local):
    calls = []
    module, entities = fake_mlflow(calls)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda package: package)
    monkeypatch.setattr(loggers, "reachable", lambda server: False)
    logger = MlflowLogger(tmp_path, MlflowCfg(), name="n", run_config={"a": {"b": 1}, "c": [2]})
    logger.log(3, {"x": 1.0, "y": None})
    command = logger.close(failed=False)
    uri = f"sqlite:///{tmp_path}/mlflow.db" if local else server
    assert calls == [
        ("uri", uri), ("run", "7", "n"), ("param", "a.b", 1), ("param", "c", [2]), ("batch", [("x", 1.0, 3)]),
        ("end", "FINISHED"),
    ]  # fmt: skip
    assert command == (f"mlflow ui --backend-store-uri {uri}" if local else None)


def test_the_database_of_mlflow_names_what_it_lacks(tmp_path, monkeypatch):
    module, entities = fake_mlflow([])
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(TelemetryError, match=r"package sqlalchemy is missing: pip install 'grpo-matrix\[mlflow\]'"):
        MlflowLogger(tmp_path, MlflowCfg(), name="n", run_config={})


def test_every_logger_is_closed_although_one_fails():
    closed = []

    class Good:
        def close(self, *, failed):
            closed.append(failed)
            return "see"

    class Bad(Good):
        def close(self, *, failed):
            raise OSError("boom")

    assert close_all([Good(), Good()], failed=True) == ["see", "see"]
    with pytest.raises(OSError, match="boom"):
        close_all([Good(), Bad(), Good()], failed=False)
    assert closed == [True, True, False, False]


def test_a_server_is_reachable_when_it_accepts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert reachable(address)
    assert not reachable(address)
