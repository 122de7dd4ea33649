# SPDX-License-Identifier: Apache-2.0
"""For all unit tests: none mounts anything, since what a test that failed has mounted would stay."""

from __future__ import annotations

import pytest

from prolog_epilog.node import mounts


@pytest.fixture(autouse=True)
def no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "mount_small", lambda _folder, _files: None)
    monkeypatch.setattr(mounts, "is_seen", lambda _folder, _pid: True)
