# SPDX-License-Identifier: Apache-2.0
"""`berth doctor --before-upgrade`: what fits the release to come, and the order of steps."""

import subprocess
from pathlib import Path

import pytest

from policy.cli.doctor import upgrade as doctor_upgrade
from policy.cli.doctor.upgrade import MAJORS, built_for, notices_found, order, plugins_found, slurmds_found
from policy.formats.errors import UsageError
from policy.site.config import Config
from policy.slurm.by_command.recorded import recorded_gateway
from tests.unit.policy.cli.test_cli import slurm

__all__ = ["slurm"]

NUMBERS = {"24.11.5": 0x180B05, "26.05.5": 0x1A0505}


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three plugins, built as for 24.11.5."""
    folder = tmp_path_factory.mktemp("plugins")
    source = f"const unsigned plugin_version = {NUMBERS['24.11.5']};"
    words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / doctor_upgrade.PLUGINS[0])]
    subprocess.run(words, input=source.encode(), check=True)
    for name in doctor_upgrade.PLUGINS[1:]:
        (folder / name).write_bytes((folder / doctor_upgrade.PLUGINS[0]).read_bytes())
    return folder


def test_a_plugin_tells_its_release(plugins: Path) -> None:
    library = (plugins / "spank_berth.so").read_bytes()

    assert built_for(library) == "24.11.5"
    assert built_for(library[:900]) == ""
    assert built_for(b"#!/bin/sh") == ""


@pytest.mark.parametrize(
    ("present", "to", "ok", "part"),
    [
        ("24.11.5", "", True, "built for 24.11.5, as slurmctld is"),
        ("24.11.5", "26.05.5", True, "install berth-slurm-plugins-26.05.5 in the step that installs Slurm 26.05.5"),
        ("24.11.6", "", False, "built for 24.11.5, and slurmctld is 24.11.6"),
        ("24.11.5", "23.11.1", False, "supports 24.11 to 26.05, not 23.11.1"),
        ("26.05.5", "25.05.1", False, "25.05.1 is older than 26.05.5"),
        ("24.11.5", "27.11.0", False, "upgrade Berth first, or try this one"),
    ],
)
def test_plugins_fit_one_release(plugins: Path, present: str, to: str, *, ok: bool, part: str) -> None:
    rows = list(plugins_found(plugins, present, to))

    assert any(row[1] == ok and part in row[2] for row in rows), rows
    assert all(row[1] for row in rows) == ok


def test_a_plugin_that_is_missing_is_named(plugins: Path, tmp_path: Path) -> None:
    rows = list(plugins_found(tmp_path, "24.11.5", ""))

    assert [row[1] for row in rows] == [False] * 3
    assert "job_submit_berth.so: No such file" in rows[0][2]


@pytest.mark.parametrize(
    ("release", "to", "ok"), [("24.11.5", "", True), ("24.11.5", "26.05.5", True), ("24.05.1", "26.05.5", False)]
)
def test_a_slurmd_may_be_three_releases_older(release: str, to: str, *, ok: bool) -> None:
    assert slurmds_found({"n1": release, "n2": ""}, "24.11.5", to)[1] == ok


def test_the_releases_are_in_order() -> None:
    assert list(MAJORS) == sorted(MAJORS)


def test_notices_speak_one_protocol(tmp_path: Path) -> None:
    program = tmp_path / "berth-notice"
    assert notices_found(program, listens=True)[1]
    program.write_bytes(b"\x7fELF berth/1 epilog job=%u")
    assert notices_found(program, listens=True)[1]
    program.write_bytes(b"\x7fELF berth/0 epilog job=%u")
    assert not notices_found(program, listens=True)[1]


def test_controllers_come_before_nodes_and_backups_before_the_first() -> None:
    steps = order("sharing", "26.05.5", ["a", "b"], accounting=True)

    places = [next(at for at, step in enumerate(steps) if step.startswith(word)) for word in (
        "slurmdbd", "On b, then a", "Restart berthd", "Node by node", "Login nodes", "On each GPU node",
        "Restart berth-guard", "berth doctor",
    )]  # fmt: skip
    assert places == sorted(places)


def test_nothing_of_berth_is_named_where_only_observe_is_in_force() -> None:
    steps = order("observe", "26.05.5", ["a"], accounting=False)

    assert [step for step in steps if "berthd" in step or "with the plugins" in step] == []


def test_a_site_is_examined(slurm: Path, plugins: Path, tmp_path: Path) -> None:
    shown = slurm / "scontrol-show-config"
    shown.write_text(f"PluginDir = {plugins}\n{shown.read_text()}")
    settings = Config(socket=tmp_path / "none")

    rows, steps = doctor_upgrade.before_upgrade(
        recorded_gateway(slurm), settings, lambda *_: b"NodeName=n1 Version=26.05.5\n", "", tmp_path
    )

    found = {name: (ok, text) for name, ok, text in rows}
    assert found["job_submit_berth.so"][0] is False
    assert found["slurmds"] == (True, "1 of release 26.05")
    assert {"waiting pins", "shares", "guests", "notices", "node scripts", "berthd's release"} < found.keys()
    assert steps[-1] == "berth doctor"
    with pytest.raises(UsageError, match="no release of Slurm"):
        doctor_upgrade.before_upgrade(recorded_gateway(slurm), settings, lambda *_: b"", "soon", tmp_path)
