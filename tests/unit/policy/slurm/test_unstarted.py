# SPDX-License-Identifier: Apache-2.0
"""A command of Slurm's that cannot be started is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy.formats.errors import SlurmError
from policy.slurm.gateways import open_gateway


def test_a_missing_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SlurmError, match="scontrol is not on PATH"):
        open_gateway("command").version()


def test_a_command_that_may_not_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As in a folder of PATH that this user may not enter: the kernel says EACCES, and there may be none.
    (tmp_path / "scontrol").touch(0o644)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SlurmError, match="scontrol is not on PATH; install"):
        open_gateway("command").version()


def test_a_command_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/nowhere\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SlurmError, match="scontrol cannot be started: No such file or directory; look at its rights"):
        open_gateway("command").version()
