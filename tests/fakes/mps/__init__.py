"""A simulated CUDA Multi-Process Service; README.md says what it knows."""

from pathlib import Path

__all__ = ["SETTINGS", "TRANSCRIPTS"]

#: The test's wishes, in the pipe directory or above it.
SETTINGS = "fake-mps.json"

TRANSCRIPTS = Path(__file__).parent / "transcripts"
"""What real control programs answered, a file for each driver: user (empty: root), command, answer."""
