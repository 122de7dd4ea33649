# SPDX-License-Identifier: Apache-2.0
"""Deals tests that need any Slurm to one version, half of them to each; all other tests run on every version."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

from containers.cluster import VERSIONS

T = TypeVar("T")
DEAL = os.environ.get("BERTH_TEST_DEAL") == "1"


def dealt(things: Sequence[T], version: str) -> tuple[T, ...]:
    """Returns the tests of this version: every second one, if tests are dealt out."""
    if not DEAL or version not in VERSIONS:
        return tuple(things)
    return tuple(things[VERSIONS.index(version) :: len(VERSIONS)])


def has_its_turn(test: str, version: str) -> bool:
    """Tells whether a test for any version runs on this one: its name decides, so that new tests move no others."""
    if not DEAL or version not in VERSIONS:
        return True
    name = test.replace(f"[{version}", "[")
    return VERSIONS[zlib.crc32(name.encode()) % len(VERSIONS)] == version
