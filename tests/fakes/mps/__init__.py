"""A simulated CUDA Multi-Process Service; README.md says what it knows."""

__all__ = ["SETTINGS"]

#: The test's wishes, in the pipe directory or above it.
SETTINGS = "fake-mps.json"
