"""A simulated CUDA Multi-Process Service; README.md says what it knows."""

import os

__all__ = ["APP", "CONTROL", "SETTINGS"]

# Strings, because these programs import this package and pathlib would take longer than all that they do.
_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
CONTROL = f"{_HERE}/nvidia-cuda-mps-control"
APP = f"{_HERE}/fake-cuda-app"
#: The test's wishes, in the pipe directory or above it.
SETTINGS = "fake-mps.json"
