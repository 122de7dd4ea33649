# SPDX-License-Identifier: Apache-2.0
"""One running cluster for each Slurm version; every test of this folder runs against each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from containers.cluster import PREFIX, Cluster

from .deal import has_its_turn
from .harness import Slurm
from .nodes import said_last
from .target import Container, from_environment
from .trace import wrong_in

ROOT = Path(__file__).resolve().parents[2]
OWN = os.environ.get("BERTH_TEST_SLURM", "")
VERSIONS = [OWN] if OWN else os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
    others = [item for item in items if is_anothers(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the daemons' last log lines to a failure: the cluster is gone by the time it is read."""
    report = yield
    slurm = getattr(item, "funcargs", {}).get("slurm")
    if report.failed and isinstance(slurm, Slurm) and isinstance(slurm.target, Container):
        report.sections += said_last(slurm)
    return report


def is_anothers(item: pytest.Item) -> bool:
    """Tells whether another Slurm version runs this test."""
    call = getattr(item, "callspec", None)
    if call is None or item.get_closest_marker("any_slurm") is None:
        return False
    return not has_its_turn(item.nodeid, str(call.params.get("slurm")))


def cluster(*words: str) -> None:
    """Runs containers/cluster.py and shows its progress."""
    subprocess.run([sys.executable, ROOT / "containers" / "cluster.py", *words], check=True)


def against_protocol(slurm: Slurm) -> list[str]:
    """Returns the lines of slurmctld's log that break Berth's protocol."""
    return wrong_in(slurm.controller_log(), int(slurm.target.run(["id", "-u", "slurm"]).out))


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest) -> Iterator[dict[str, Slurm]]:
    """For each version four nodes of different machines, Berth in charge of the partition `gpu`; all up at once.

    A cluster that was up before stays up.
    """
    if OWN:
        yield {OWN: Slurm(OWN, from_environment(OWN))}
        return
    ours = [version for version in VERSIONS if not Cluster(version, berth=True).containers()]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            print()
            for version in VERSIONS:
                cluster("up", "--slurm", version)
        made = {v: Slurm(v, Container(f"{PREFIX}{v.replace('.', '')}-ctl")) for v in VERSIONS}
        yield made
        # Whatever else each test looked at.
        assert {v: found for v, one in made.items() if (found := against_protocol(one))} == {}
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            with capture.global_and_fixture_disabled():
                for version in ours:
                    cluster("down", "--slurm", version)


@pytest.fixture(scope="session", params=VERSIONS)
def slurm(request: pytest.FixtureRequest, clusters: dict[str, Slurm]) -> Slurm:
    """Returns the cluster of one version."""
    return clusters[str(request.param)]


@pytest.fixture(autouse=True)
def quiet(slurm: Slurm) -> Iterator[None]:
    """Starts and ends each test with an empty queue and berthd running."""
    if not slurm.is_clear:
        slurm.clear()
    slurm.is_clear = False
    yield
    slurm.clear()
