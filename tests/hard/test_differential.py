# SPDX-License-Identifier: Apache-2.0
"""Requests at random, on plain Slurm and with Berth: what plain Slurm runs is neither refused nor another job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import pytest

from containers.cluster import PREFIX
from tests.differential.compare import difference
from tests.differential.draw import at_random, covering
from tests.differential.outcome import Outcome, Request, outcome_of, prepare
from tests.slurm.conftest import cluster
from tests.slurm.target import Container, Target
from tests.waiting import until

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
COUNT = int(os.environ.get("BERTH_DIFFERENTIAL", "3000"))
FIRST = int(os.environ.get("BERTH_DIFFERENTIAL_FROM", "0"))
SEED = int(os.environ.get("BERTH_DIFFERENTIAL_SEED", "1"))
FOLDER = "/home/differential"
Pair = tuple[Target, Target]

HALF = """
for n in 1 2 3 4; do
    sbatch -Q -o /dev/null -t99 -w n$n -n5 --mem=9000 --gres=gpu:$((n + 1)) --wrap 'exec sleep 9999'
done
"""
"""Jobs that hold two to five GPUs of each node."""

SCATTERED = """
set -- 5 7 6 7
for n in 1 2 3 4; do
    sbatch -Q -o /dev/null -t99 -w n$n -n5 --mem=9000 --gres=gpu:$1 --wrap 'exec sleep 9999'
    shift
done
"""
"""Jobs that leave three, one, two and one GPUs: four are free on no node, and over several."""


@pytest.fixture(params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The same nodes without Berth and with it."""
    version = request.param
    name = f"{PREFIX}{version.replace('.', '')}"
    # Images of one's own, such as those of another release, are taken as they are.
    words = ["--slurm", version, *(["--no-build"] if os.environ.get("BERTH_CLUSTER_IMAGES") else [])]
    try:
        cluster("up", *words)
        cluster("up", *words, "--without-berth")
        plain, berth = Container(f"{name}-plain-ctl"), Container(f"{name}-ctl")
        # On a release that was not tried yet, berthd leaves all jobs to Slurm until this has passed.
        berth.bash("mkdir -p /var/lib/berth && berth doctor release", user="root", check=False)
        yield plain, berth
    finally:
        cluster("down", "--slurm", version)
        cluster("down", "--slurm", version, "--without-berth")


def both(pair: Pair, request: Request) -> tuple[Outcome, Outcome]:
    run = partial(outcome_of, request=request, folder=FOLDER, seconds=8)
    with ThreadPoolExecutor(2) as pool:
        plain, berth = pool.map(run, pair)
    return plain, berth


LEFT = r"squeue -h -u alice; sinfo -h -N -o '%N %T' | grep -vE ' (idle|mixed|allocated)$'; true"
"""What earlier requests have left: jobs, and nodes that end some or take none."""


def wait_quiet(pair: Pair) -> None:
    """Wait until nothing of earlier requests is left, so that a difference is this request's own."""
    for target in pair:
        until(f"{target} to be quiet", partial(_is_quiet, target), 120)


def _is_quiet(target: Target) -> bool:
    return not target.bash(LEFT, user="root").out.strip()


def requests() -> list[Request]:
    """Each three words of different options together once, and the rest at random."""
    if SEED != 1:
        return list(at_random(SEED, COUNT))
    found = dict.fromkeys(covering(3))
    found |= dict.fromkeys(
        islice((one for one in at_random(SEED, COUNT) if one not in found), max(0, COUNT - len(found)))
    )
    return list(found)[:COUNT]


@pytest.mark.hard
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("full", ["", HALF, SCATTERED], ids=["idle", "half-full", "scattered"])
def test_requests_become_the_same_as_on_plain_slurm(pair: Pair, full: str) -> None:
    for target in pair:
        prepare(target, FOLDER)
        if full:
            target.bash(full, user="bob")
    every = requests()
    # Most are tried on nodes that are idle; the others would show the same.
    chosen = every[::4] if full else every
    ran, found = 0, dict[str, str]()
    for number, request in enumerate(chosen[FIRST:], FIRST):
        if number % 50 == 0:
            print(f"at {number}: {ran} ran on plain Slurm, {len(found)} differ", flush=True)
        plain, berth = both(pair, request)
        ran += bool(plain.tasks)
        if not difference(request, plain, berth):
            continue
        # What plain Slurm does differently each time, it may do so with Berth too.
        again = []
        for _ in range(2):
            wait_quiet(pair)
            again.append(both(pair, request))
        if all(difference(request, *two) for two in again) and len({one for one, _ in again} | {plain}) == 1:
            why = difference(request, plain, berth)
            found[request.text()] = why
            print(f"{number}: {request.text()}\n  {why}\n  plain {plain.text()}\n  berth {berth.text()}", flush=True)

    print(f"{len(chosen) - FIRST} requests, {ran} of which ran on plain Slurm, {len(found)} differ")
    # Of the first ones, which hold each three words, most contradict themselves.
    assert ran > (len(chosen) - FIRST) // 10
    assert found == {}
