# SPDX-License-Identifier: Apache-2.0
"""Where tests find the simulated MPS's programs, copies that processes of every user can start, and transcripts."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.place import copy_of

__all__ = ["TRANSCRIPTS", "app", "control"]

TRANSCRIPTS = Path(__file__).parent / "transcripts"
"""What real control programs answered, a file for each driver: user (empty: root), command, answer."""


def _programs() -> Path:
    # They import each other as tests.fakes.mps.
    return copy_of(Path(__file__).parent, "tests/fakes/mps")


def control() -> str:
    """Path of nvidia-cuda-mps-control."""
    return str(_programs() / "nvidia-cuda-mps-control")


def app() -> str:
    """Path of fake-cuda-app."""
    return str(_programs() / "fake-cuda-app")
