"""Logs to standard error, worded as Slurm words its own."""

import logging
import sys


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{record.name}: {level}{record.getMessage()}"


def logger(name: str) -> logging.Logger:
    """The log of one process."""
    log = logging.getLogger(name)
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Format())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log
