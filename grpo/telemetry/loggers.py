"""Where metrics go besides the run directory: TensorBoard by default, Weights & Biases and MLflow by option."""

import importlib.util
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

from grpo.config.schema.run import Logger as LoggerConfig
from grpo.config.schema.run import MlflowCfg, WandbCfg
from grpo.errors import TelemetryError
from grpo.telemetry.journal import disk_error
from grpo.telemetry.secrets import Redactor

_CONNECT_SECONDS = 2.0
_MLFLOW_REMEDY = "pip install 'grpo-matrix[mlflow]', or logger.mlflow_enabled=false"
_TENSORBOARD_FLUSH_SECONDS = 5.0


class MetricLogger(Protocol):
    """Takes one step's metrics after another."""

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Metrics of one step; None means not measured and is left out."""

    def close(self, *, failed: bool) -> str | None:
        """Flush and end. Returns the command that shows or sends what was logged, for the user; None: nothing to do."""


def build_loggers(
    config: LoggerConfig,
    directory: Path,
    *,
    name: str,
    run_config: Mapping[str, Any],
    resume_step: int | None = None,
    redactor: Redactor | None = None,
) -> list[MetricLogger]:
    """The loggers that `logger.*` asks for, writing under the run directory.

    `run_config` is the resolved configuration; secrets are removed before it leaves this process.
    Raises TelemetryError naming the extra to install for a library that is missing.
    """
    cleaned = (redactor or Redactor.from_environment()).json(run_config)
    loggers: list[MetricLogger] = []
    if config.tensorboard_enabled:
        loggers.append(TensorBoardLogger(directory / "tensorboard", resume_step=resume_step))
    if config.wandb_enabled:
        loggers.append(WandbLogger(directory, config.wandb, name=name, run_config=cleaned))
    if config.mlflow_enabled:
        loggers.append(MlflowLogger(directory, config.mlflow, name=name, run_config=cleaned))
    return loggers


class TensorBoardLogger:
    """One summary a step in TensorBoard's own record format.

    Its record writer alone is used: `SummaryWriter` starts a thread and imports TensorFlow wherever that is installed.
    """

    def __init__(self, directory: Path, *, resume_step: int | None = None) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise _missing("tensorboard", "pip install tensorboard, or logger.tensorboard_enabled=false") from error
        self._event, self._summary = Event, Summary
        self._directory = directory
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.0"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / name).open("wb")
        except OSError as error:
            raise disk_error(error, directory) from error
        self._writer = RecordWriter(self._file)
        self._flushed = 0.0
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_step is not None:
            # Tells TensorBoard to drop what an earlier run logged beyond the checkpoint.
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        points = [
            self._summary.Value(tag=name, simple_value=value) for name, value in values.items() if value is not None
        ]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=points)))

    def close(self, *, failed: bool) -> str | None:  # noqa: ARG002 - TensorBoard knows no outcome
        try:
            self._file.close()
        except OSError as error:
            raise disk_error(error, self._directory) from error
        return f"tensorboard --logdir {self._directory}"

    def _write(self, event: Any) -> None:
        try:
            self._writer.write(event.SerializeToString())
            now = time.monotonic()
            if now - self._flushed > _TENSORBOARD_FLUSH_SECONDS:
                self._writer.flush()
                self._flushed = now
        except OSError as error:
            raise disk_error(error, self._directory) from error


class WandbLogger:
    """Weights & Biases; offline, with the command that syncs, when its server cannot be reached."""

    def __init__(self, directory: Path, config: WandbCfg, *, name: str, run_config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "pip install 'grpo-matrix[wandb]', or logger.wandb_enabled=false") from error
        server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
        mode = os.environ.get("WANDB_MODE") or ("online" if reachable(server) else "offline")
        self._offline = mode == "offline"
        self._run = wandb.init(
            project=config.project,
            name=config.name or name,
            dir=str(directory),
            config=dict(run_config),
            mode=mode,
            # Its metadata would hold the command line, secrets included.
            settings=wandb.Settings(console="off", silent=True, x_disable_meta=True, disable_git=True),
        )

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        self._run.log({name: value for name, value in values.items() if value is not None}, step=step)

    def close(self, *, failed: bool) -> str | None:
        folder = Path(self._run.dir).parent
        self._run.finish(exit_code=1 if failed else 0)
        return f"wandb sync {folder}" if self._offline else None


class MlflowLogger:
    """MLflow; a database in the run directory, with the command that shows it, when its server cannot be reached."""

    def __init__(self, directory: Path, config: MlflowCfg, *, name: str, run_config: Mapping[str, Any]) -> None:
        mlflow = _import_mlflow()
        server = os.environ.get("MLFLOW_TRACKING_URI", "")
        remote = server.startswith(("http://", "https://"))
        local = not server or (remote and not reachable(server))
        uri = f"sqlite:///{(directory / 'mlflow.db').absolute()}" if local else server
        self._local = uri if local else None
        for package in ("sqlalchemy", "alembic") if local else ():  # mlflow-skinny leaves them out
            if importlib.util.find_spec(package) is None:
                raise _missing("mlflow", _MLFLOW_REMEDY, package=package)
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(config.experiment_name)
        experiment_id = (
            self._client.create_experiment(config.experiment_name) if experiment is None else experiment.experiment_id
        )
        self._run_id = self._client.create_run(experiment_id, run_name=config.run_name or name).info.run_id
        for key, value in flatten(run_config).items():
            self._client.log_param(self._run_id, key, value)
        self._metric = mlflow.entities.Metric

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items() if value is not None]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, *, failed: bool) -> str | None:
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")
        return None if self._local is None else f"mlflow ui --backend-store-uri {self._local}"


def close_all(loggers: Sequence[MetricLogger], *, failed: bool) -> list[str]:
    """Close every logger, also after one that raised; the commands to show the user. Raises the first error."""
    commands: list[str] = []
    errors: list[Exception] = []
    for logger in loggers:
        try:
            command = logger.close(failed=failed)
        except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
            errors.append(error)
        else:
            commands += [command] if command else []
    if errors:
        raise errors[0]
    return commands


def reachable(server: str) -> bool:
    """Whether a TCP connection to the server's address opens within two seconds."""
    parts = urlsplit(server)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _import_mlflow() -> ModuleType:
    try:
        import mlflow
        import mlflow.entities
    except ImportError as error:
        raise _missing("mlflow", _MLFLOW_REMEDY) from error
    module: ModuleType = mlflow
    return module


def _missing(module: str, remedy: str, *, package: str | None = None) -> TelemetryError:
    return TelemetryError(f"logger.{module}_enabled is true and the package {package or module} is missing: {remedy}")
