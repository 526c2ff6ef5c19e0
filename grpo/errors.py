"""Errors whose message is for the user: they name the key or file, the value, and what would be valid.

The command line prints the message of these alone and exits with `exit_code`; every other exception is a fault of the
program or of the machine and keeps its traceback.
"""

EXIT_BAD_INPUT = 2
EXIT_REQUEUE = 85  # "saved, start me again"; 75 is left to infrastructure


class GrpoError(Exception):
    """Base of the errors that a user can act upon."""

    exit_code = EXIT_BAD_INPUT


class ConfigError(GrpoError):
    """A recipe or override that cannot be run."""


class DataError(GrpoError):
    """A dataset, prompt or tokenizer that cannot be used."""


class ModelError(GrpoError):
    """A model folder that is missing, unreadable or does not fit."""


class CheckpointError(GrpoError):
    """A checkpoint that cannot be written or read."""


class RewardError(GrpoError):
    """A verifier that cannot be loaded or whose pool cannot run."""


class GenerationError(GrpoError):
    """An engine that cannot be started or returned what it must not."""


class WorkerError(GrpoError):
    """A worker process that cannot be started, died, or did not answer in time."""


class TelemetryError(GrpoError):
    """A run directory that cannot be used, written or read, or a logger that cannot be started."""


class MatrixError(GrpoError):
    """A file of the test matrix that cannot be used, or a case, partition or run that it does not have."""


class SlurmError(GrpoError):
    """A Slurm cluster that is missing, refuses a job, or does not answer in time."""
