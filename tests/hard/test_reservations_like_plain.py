# SPDX-License-Identifier: Apache-2.0
"""Reservations at random beside plain Slurm: the same jobs start, in the same reservations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from containers.cluster import PREFIX
from tests.differential.reservations import Drawn, at_random, clear, outcome_of
from tests.slurm.conftest import cluster
from tests.slurm.target import Container, Target

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
COUNT = int(os.environ.get("BERTH_RESERVATIONS", "300"))
FIRST = int(os.environ.get("BERTH_RESERVATIONS_FROM", "0"))


@pytest.fixture(params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[str, Target, Target]]:
    """The same nodes without Berth and with it; only accounting counts GPUs, which reservations of them need."""
    version = request.param
    name = f"{PREFIX}{version.replace('.', '')}"
    words = "--slurm", version, "--profile", "accounting"
    try:
        cluster("up", *words, "--without-berth")
        cluster("up", *words)
        yield version, Container(f"{name}-plain-ctl"), Container(f"{name}-ctl")
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)
            cluster("down", "--slurm", version, "--without-berth")


def both(pair: Sequence[Target], drawn: Drawn) -> tuple[list[str], list[str]]:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(clear, pair))
        plain, berth = pool.map(outcome_of, pair, (drawn.reservations, drawn.typed), (drawn, drawn))
    return plain, berth


@pytest.mark.hard
@pytest.mark.timeout(4 * 3600)
def test_jobs_around_reservations_start_as_on_plain_slurm(pair: tuple[str, Target, Target]) -> None:
    version, *targets = pair
    found: dict[int, str] = {}
    for number, seed in enumerate(range(FIRST, FIRST + COUNT)):
        if number % 20 == 0:
            print(f"{number} draws from {FIRST} on, {len(found)} differ", flush=True)
        drawn = at_random(seed)
        plain, berth = both(targets, drawn)
        # What plain Slurm does differently each time, it may do so with Berth too.
        if sorted(plain) != sorted(berth) and sorted(both(targets, drawn)[0]) == sorted(plain):
            told = f"{drawn.text()}\n  plain {plain}\n  berth {berth}"
            print(f"{seed}{' (known)' if drawn.known_on(version) else ''}: {told}", flush=True)
            if not drawn.known_on(version):
                found[seed] = told
    print(f"{COUNT} draws from {FIRST} on, {len(found)} differ")
    assert found == {}
