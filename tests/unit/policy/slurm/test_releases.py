# SPDX-License-Identifier: Apache-2.0
"""Slurm's releases: which ones Berth acts on."""

from pathlib import Path

import pytest

from policy.slurm.releases import note_tried, why_only_watched


@pytest.mark.parametrize("version", ["24.11.5", "25.05.0", "25.11.7", "26.05.3", "", "a build of our own"])
def test_acts_on_all_up_to_the_newest_tested_one(tmp_path: Path, version: str) -> None:
    assert why_only_watched(version, tmp_path / "none") == ""


def test_acts_on_a_newer_one_once_it_was_tried_there(tmp_path: Path) -> None:
    tried = tmp_path / "berth" / "tried-releases"
    why = "Slurm 26.11 is newer than those that Berth was tested with (24.11 to 26.05): run berth doctor release"
    assert why_only_watched("26.11.0", tried) == why

    note_tried("26.11.0-0rc1", tried)

    assert why_only_watched("26.11.3", tried) == ""
    assert why_only_watched("27.05.0", tried).startswith("Slurm 27.05 is newer")

    note_tried("27.05.0", tried)

    assert tried.read_text() == "26.11\n27.05\n"


def test_a_broken_note_counts_as_none(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    tried.write_bytes(b"\xff26.11\n")

    assert why_only_watched("26.11.0", tried)
