# SPDX-License-Identifier: Apache-2.0
"""Speeds of NVLinks of which the driver tells only the version, or nothing."""

from __future__ import annotations

import pytest

from topology.providers import speeds


@pytest.mark.parametrize(
    ("version", "mbps"), [(1, 20_000), (2, 25_781), (3, 25_781), (4, 25_781), (5, 25_781), (6, 26_562), (7, 53_125)]
)
def test_a_link_is_as_fast_as_its_version(version: int, mbps: int) -> None:
    assert speeds.of_version(version) == mbps


@pytest.mark.parametrize("version", [None, 0, 99])
def test_a_link_of_an_unknown_version_is_taken_for_a_usual_one(version: int | None) -> None:
    assert speeds.of_version(version) == 25_781


@pytest.mark.parametrize(("links", "mbps"), [(3, 25_781), (4, 14_062), (12, 25_781), (13, 26_562), (99, 26_562)])
def test_of_a_driver_that_tells_no_version_the_number_of_links_is_left(links: int, mbps: int) -> None:
    assert speeds.guess_mbps(links) == mbps
