# SPDX-License-Identifier: Apache-2.0
"""What `make test` runs on one Slurm version only is run on one, and on no fewer."""

from __future__ import annotations

import pytest

from containers.cluster import VERSIONS
from tests.slurm import deal


def test_each_thing_is_dealt_to_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal, "DEAL", True)

    hands = [deal.dealt(range(101), version) for version in VERSIONS]

    assert sorted(thing for hand in hands for thing in hand) == list(range(101))


def test_each_test_has_its_turn_on_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal, "DEAL", True)
    tests = [f"tests/slurm/test_it.py::test_{number}[{{}}-left]" for number in range(200)]

    turns = {test: [v for v in VERSIONS if deal.has_its_turn(test.format(v), v)] for test in tests}

    assert all(len(versions) == 1 for versions in turns.values())
    assert {version for versions in turns.values() for version in versions} == set(VERSIONS)


def test_elsewhere_and_on_a_slurm_of_ones_own_everything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal, "DEAL", False)
    assert [deal.dealt("abc", version) for version in VERSIONS] == [("a", "b", "c")] * len(VERSIONS)
    assert all(deal.has_its_turn(f"test_it[{version}]", version) for version in VERSIONS)
    monkeypatch.setattr(deal, "DEAL", True)
    assert deal.dealt("abc", "/opt/slurm") == ("a", "b", "c")
    assert deal.has_its_turn("test_it[/opt/slurm]", "/opt/slurm")
