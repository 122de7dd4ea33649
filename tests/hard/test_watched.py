# SPDX-License-Identifier: Apache-2.0
"""The C of Berth in the real slurmctld, slurmd, slurmstepd and commands, watched by ASan and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import IMAGES, PREFIX, VERSIONS, Cluster

ROOT = Path(__file__).resolve().parents[2]
LOGS = "/var/log/watched"
TESTS = (
    "flags", "changes", "given", "het", "gateways", "notice", "long_texts", "node_runs", "node_scripts", "preflight",
    "round_trip", "tres_reading", "refused_places", "partitions", "later", "shares", "guests", "spreading", "injob",
)  # fmt: skip
"""The files of tests/slurm that together reach all that is written in C, but for the library inside jobs."""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(3600)]


class WatchedCluster:
    """A cluster of the watched image, and what was found in it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.images, self.prefix = f"{IMAGES}-watched", f"{PREFIX}-watched"
        self.controller = f"{self.prefix}{version.replace('.', '')}-ctl"

    def build(self) -> None:
        """Builds the image on top of the usual one."""
        usual = Cluster(self.version, berth=True).image
        self._cluster("build", usual=True)
        words = ["docker", "build", "--network", "host", "--quiet", "--build-arg", f"IMAGE={usual}", "--file"]
        words += [str(Path(__file__).parent / "watched" / "Dockerfile"), "--tag"]
        subprocess.run([*words, f"{self.images}-cluster:{self.version}", str(ROOT)], check=True)

    def up(self) -> None:
        """Starts it."""
        self._cluster("up", "--no-build", "--time-limit", "300")

    def down(self) -> None:
        """Takes it down."""
        self._cluster("down")

    def _cluster(self, *words: str, usual: bool = False) -> None:
        names = {} if usual else {"BERTH_CLUSTER_IMAGES": self.images, "BERTH_CLUSTER_PREFIX": self.prefix}
        command = [sys.executable, str(ROOT / "containers" / "cluster.py"), *words, "--slurm", self.version]
        subprocess.run(command, env={**os.environ, **names}, check=True)

    def runs(self, script: str, container: str = "", user: str = "root") -> str:
        """Runs a script in a container, the controller's by default."""
        words = ["docker", "exec", "--user", user, container or self.controller, "sh", "-c", script]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def found(self) -> str:
        """Returns what ASan and UBSan wrote, in all containers."""
        words = ["docker", "ps", "--quiet", "--filter", f"name=^{self.controller.removesuffix('ctl')}"]
        containers = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
        assert len(containers) > 1
        return "".join(self.runs(f"cat {LOGS}/* 2>/dev/null || true", one) for one in containers)


@pytest.fixture(scope="module", params=VERSIONS)
def watched(request: pytest.FixtureRequest) -> Iterator[WatchedCluster]:
    one = WatchedCluster(str(request.param))
    one.build()
    try:
        one.up()
        yield one
    finally:
        one.down()


def test_what_is_planted_is_found(watched: WatchedCluster) -> None:
    node = watched.controller.replace("ctl", "n1")
    for program, container, user, plugin in (
        ("slurmctld", watched.controller, "slurm", "job_submit_berth.so"),
        ("slurmd", node, "root", "spank_berth.so"),
    ):
        maps = watched.runs(f"cat /proc/$(pgrep -o -x {program})/maps", container, user)
        assert "clang_rt.asan" in maps
        assert plugin in maps
    watched.runs("LD_PRELOAD=/usr/lib/watched-planted.so /bin/true", node)
    found = watched.found()
    assert "heap-buffer-overflow" in found
    assert "signed integer overflow" in found
    watched.runs(f"rm {LOGS}/*", node)


def test_nothing_is_found_while_the_tests_of_the_cluster_run(watched: WatchedCluster) -> None:
    tests = [f"tests/slurm/test_{name}.py" for name in TESTS]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not hard", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "BERTH_TEST_SLURM": watched.controller}, check=False)
    assert watched.found() == ""
    assert done.returncode == 0
