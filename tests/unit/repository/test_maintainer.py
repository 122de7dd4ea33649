# SPDX-License-Identifier: Apache-2.0
"""The maintainer that packages name."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BUILD = runpy.run_path(str(Path(__file__).resolve().parents[3] / "packaging" / "build.py"))
DEBIANS = {"DEBFULLNAME": "HPC group", "DEBEMAIL": "hpc@site.test"}


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "Berth project <berth@berth.invalid>"),
        ({"DEBEMAIL": "hpc@site.test"}, "Berth project <berth@berth.invalid>"),
        (DEBIANS, "HPC group <hpc@site.test>"),
        ({**DEBIANS, "BERTH_MAINTAINER": "Operators <op@site.test>"}, "Operators <op@site.test>"),
    ],
)
def test_a_site_names_its_maintainer_and_else_the_project_stands_there(environment: dict[str, str], named: str) -> None:
    assert BUILD["maintainer"](environment) == named


@pytest.mark.parametrize("wrong", ["Operators", "op@site.test", "A <a@b> C <c@d>", "Two\nlines <a@b>"])
def test_a_maintainer_that_no_package_manager_takes_is_refused(wrong: str) -> None:
    with pytest.raises(SystemExit, match="names no maintainer"):
        BUILD["maintainer"]({"BERTH_MAINTAINER": wrong})
