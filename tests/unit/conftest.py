"""For all unit tests: none mounts anything, since what a test that failed has mounted would stay."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from prolog_epilog.node import mounts


def not_mounted(_folder: Path, _files: int) -> None:
    raise OSError(errno.EPERM, "cannot mount a tmpfs")


@pytest.fixture(autouse=True)
def no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "mount_small", not_mounted)
