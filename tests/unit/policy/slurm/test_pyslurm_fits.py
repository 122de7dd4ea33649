# SPDX-License-Identifier: Apache-2.0
"""Whether the pyslurm that is installed can be used with the Slurm that runs here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from policy.formats.errors import SlurmError
from policy.slurm.by_library import pyslurm_gateway
from policy.slurm.by_library.pyslurm_gateway import fits


def running(version: str) -> Callable[..., bytes]:
    return lambda *_: f"slurm {version}\n".encode()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], None]:
    """Puts a pyslurm of a version and with a body where this Python, and its children, find it."""

    def put(version: str, body: str) -> None:
        (tmp_path / "pyslurm.py").write_text(body)
        folder = tmp_path / f"pyslurm-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {version}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


def test_a_pyslurm_of_the_running_release_fits(installed: Callable[[str, str], None]) -> None:
    installed("25.11.2", "")

    assert fits(running("25.11.7")) == ""


def test_without_pyslurm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)

    assert fits(running("25.11.7")).startswith("pyslurm is not installed in /")


def test_a_pyslurm_of_another_release_does_not_fit_and_is_never_imported(
    installed: Callable[[str, str], None], tmp_path: Path
) -> None:
    installed("25.11.2", f"open({str(tmp_path / 'imported')!r}, 'w')")

    reason = fits(running("24.11.5"))
    assert reason == "pyslurm 25.11.2 fits another Slurm than the 24.11.5 here; install pyslurm 24.11"
    assert not (tmp_path / "imported").exists()


def test_an_import_that_ends_the_process_ends_only_the_probe(installed: Callable[[str, str], None]) -> None:
    installed("25.11.2", "import os\nos.write(2, b'fatal: Could not establish a configuration source\\n')\nos._exit(1)")

    reason = fits(running("25.11.7"))
    assert reason == "pyslurm 25.11.2 cannot be loaded: fatal: Could not establish a configuration source"


def test_an_import_that_hangs_is_given_up(
    installed: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("25.11.2", "import time\ntime.sleep(60)")
    monkeypatch.setattr(pyslurm_gateway, "_PROBE_SECONDS", 0.3)

    assert "within 0.3 s" in fits(running("25.11.7"))


def test_without_slurms_commands_the_reason_is_theirs(installed: Callable[[str, str], None]) -> None:
    def absent(*_: str) -> bytes:
        raise SlurmError("scontrol is not on PATH; install Slurm's client commands here")

    installed("25.11.2", "")

    assert "scontrol is not on PATH" in fits(absent)
