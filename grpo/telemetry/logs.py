"""The capped log of one rank."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from grpo.telemetry.journal import disk_error
from grpo.telemetry.secrets import Redactor

MAX_BYTES = 8 * 2**20
OLDER_FILES = 2


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


def start_log(path: Path, redactor: Redactor, level: int) -> logging.Handler:
    """Attach a rotating file to the `grpo` logger: at most MAX_BYTES, and OLDER_FILES earlier files of that size."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=OLDER_FILES, encoding="utf-8")
    except OSError as error:
        raise disk_error(error, path) from error
    handler.setLevel(level)
    handler.setFormatter(_RedactingFormatter(redactor))
    logger = logging.getLogger("grpo")
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > level:
        logger.setLevel(level)
    return handler
