"""Requests at random, on plain Slurm and with Berth: what plain Slurm runs is neither refused nor another job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from containers.cluster import PREFIX
from tests.differential.compare import difference
from tests.differential.draw import at_random
from tests.differential.outcome import Outcome, Request, outcome_of, prepare
from tests.slurm.conftest import cluster
from tests.slurm.target import Container, Target

VERSIONS = ("24.11", "26.05")
COUNT = int(os.environ.get("BERTH_DIFFERENTIAL", "3000"))
SEED = int(os.environ.get("BERTH_DIFFERENTIAL_SEED", "1"))
FOLDER = "/home/differential"
Pair = tuple[Target, Target]


@pytest.fixture(params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The same nodes without Berth and with it."""
    version = request.param
    name = f"{PREFIX}{version.replace('.', '')}"
    try:
        cluster("up", "--slurm", version)
        cluster("up", "--slurm", version, "--without-berth")
        yield Container(f"{name}-plain-ctl"), Container(f"{name}-ctl")
    finally:
        cluster("down", "--slurm", version)
        cluster("down", "--slurm", version, "--without-berth")


def both(pair: Pair, request: Request) -> tuple[Outcome, Outcome]:
    run = partial(outcome_of, request=request, folder=FOLDER, seconds=8)
    with ThreadPoolExecutor(2) as pool:
        plain, berth = pool.map(run, pair)
    return plain, berth


@pytest.mark.hard
@pytest.mark.timeout(3 * 3600)
def test_random_requests_become_the_same_as_on_plain_slurm(pair: Pair) -> None:
    for target in pair:
        prepare(target, FOLDER)
    ran, found = 0, {}
    for number, request in enumerate(at_random(SEED, COUNT)):
        plain, berth = both(pair, request)
        ran += bool(plain.tasks)
        if not difference(request, plain, berth):
            continue
        # What plain Slurm does differently each time, it may do so with Berth too.
        again = [both(pair, request) for _ in range(2)]
        if all(difference(request, *two) for two in again) and len({one for one, _ in again} | {plain}) == 1:
            found[request.text()] = (plain, berth)
            print(f"{number}: {request.text()}\n  plain {plain.text()}\n  berth {berth.text()}", flush=True)

    assert ran > COUNT // 3
    assert found == {}
