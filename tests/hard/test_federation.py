# SPDX-License-Identifier: Apache-2.0
"""Two clusters with Berth in one federation: their jobs are Slurm's, and each starts at one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import IMAGES, PREFIX
from tests.slurm.conftest import VERSIONS
from tests.slurm.harness import Slurm, seen
from tests.slurm.nodes import NAMES
from tests.slurm.target import Container
from tests.slurm.test_planner import segment_of
from tests.waiting import until

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
# The second cluster in the accounting of the first: it has that one's key, and a name of its own.
KEY = """
. /usr/share/berth-cluster/lib.sh
pkill -x munged
while pgrep -x munged >/dev/null; do sleep 0.05; done
start_munge
"""
WEST = """
set -e
cd /etc/slurm
sed -i 's/^ClusterName=.*/ClusterName=west/' slurm.conf
cat /usr/share/berth-cluster/slurm-accounting.conf /usr/share/berth-cluster/slurm-accounting-berth.conf >>slurm.conf
svc slurmctld stop
rm -rf /var/spool/slurmctld/*
"""
FEDERATE = """
sacctmgr -iQ add account research cluster=west
sacctmgr -iQ add user alice,bob,carol,dave account=research cluster=west
sacctmgr -iQ add federation coast clusters=berth,west
"""
NAMES_OF = ("berth", "west")
LATER = ("--begin=now+1hour",)
"""A job that is held is sent to no other cluster."""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]


def docker(*words: str) -> None:
    subprocess.run(["docker", *words], check=True, capture_output=True)


def cluster(prefix: str, *words: str) -> None:
    names = {"BERTH_CLUSTER_PREFIX": prefix, "BERTH_CLUSTER_IMAGES": IMAGES}
    subprocess.run([sys.executable, str(CLUSTER), *words], env={**os.environ, **names}, check=True)


@pytest.fixture(scope="module", params=VERSIONS)
def sites(request: pytest.FixtureRequest) -> Iterator[tuple[Slurm, Slurm]]:
    """The cluster `berth`, which has slurmdbd, and the cluster `west`."""
    version = str(request.param)
    prefixes = PREFIX, f"{PREFIX}-west"
    projects = [f"{prefix}{version.replace('.', '')}" for prefix in prefixes]
    try:
        cluster(prefixes[0], "up", "--slurm", version, "--profile", "accounting", "--time-limit", "240")
        cluster(prefixes[1], "up", "--slurm", version, "--no-build", "--time-limit", "240")
        east, west = (Slurm(version, Container(f"{project}-ctl")) for project in projects)
        join(projects, east, west)
        yield east, west
    finally:
        for prefix in reversed(prefixes):
            cluster(prefix, "down", "--slurm", version)


def join(projects: list[str], east: Slurm, west: Slurm) -> None:
    """Makes one federation of both."""
    key = east.target.bash("base64 -w0 /etc/slurm/.munge.key", user="root").out
    west.target.bash(f"{WEST}base64 -d <<<{key} >.munge.key", user="root")
    # The controller of west joins a network in which there are hosts of the same names.
    for host, names in [(f"{projects[1]}-ctl", NAMES), *((f"{projects[0]}-{node}", ("ctl",)) for node in NAMES)]:
        Container(host).bash(f"getent hosts {' '.join(names)} >>/etc/hosts", user="root")
    docker("network", "connect", f"{projects[0]}_cluster", f"{projects[1]}-ctl")
    for name in ("ctl", *NAMES):
        Container(f"{projects[1]}-{name}").bash(KEY, user="root")
    west.target.run(["svc", "slurmctld", "start"], user="root")
    listed = ["sacctmgr", "-nP", "show", "cluster", "format=cluster,controlhost"]
    until("slurmdbd to know west", lambda: "west|1" in east.target.run(listed, user="root").out or None)
    east.target.bash(FEDERATE, user="root")
    for site in (east, west):
        in_step(site)


def in_step(site: Slurm) -> None:
    """Waits until a cluster and its sibling know each other's jobs, and its nodes are idle."""
    shown = ["scontrol", "show", "federation"]
    until("the clusters to be in step", lambda: "Synced:Yes" in site.target.run(shown).out or None)
    until("four idle nodes", lambda: idle(site) or None)


def idle(site: Slurm) -> bool:
    return site.target.run(["sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D"], check=False).out.strip() == "4"


def state(site: Slurm, job: int) -> str:
    """The state of the job at this cluster; empty where it is not known there, or was revoked."""
    words = ["squeue", "-h", "--local", "-t", "all", "-j", str(job), "-o", "%T"]
    return site.target.run(words, user="root", check=False).out.strip().replace("REVOKED", "")


def left_to_slurm(site: Slurm) -> bool:
    job = site.submit("--gpus=2", "-H", body="true")
    found = segment_of(site, job).get("state", "")
    site.target.run(["scancel", str(job)])
    return found == "passed"


def ends(site: Slurm, job: int) -> None:
    """Waits for the end of a job of two H100s at this cluster."""
    until("the job to end", lambda: state(site, job) == "COMPLETED" or None)
    [probe] = seen(site.target.bash(f"cat {site.shared}/{job}.out", user="root").out)
    assert (probe.node, len(probe.gpus)) == ("n2", 2)


def test_a_job_runs_at_one_cluster_and_slurm_chooses_its_gpus(sites: tuple[Slurm, Slurm]) -> None:
    for site in sites:
        until("Berth to leave jobs to Slurm", lambda: left_to_slurm(site) or None)  # noqa: B023
    for origin in sites:
        job = origin.submit("--gpus=h100:2")

        def active(job: int = job, origin: Slurm = origin) -> str | None:
            found = origin.show(job)["FedActiveSiblings"]
            return found if found in NAMES_OF else None

        ends(sites[NAMES_OF.index(until("one cluster to have it", active))], job)
        assert origin.show(job)["ReqNodeList"] == "(null)"


def test_a_job_starts_at_the_other_cluster_where_its_own_is_full(sites: tuple[Slurm, Slurm]) -> None:
    for name, origin, other in zip(NAMES_OF, sites, sites[::-1], strict=True):
        full = [origin.submit("--clusters", name, "--gpus=8", "-w", node, body="sleep 300") for node in NAMES]
        until("all GPUs to be busy", lambda: all(state(origin, job) == "RUNNING" for job in full) or None)  # noqa: B023
        ends(other, origin.submit("--gpus=h100:2"))
        origin.target.run(["scancel", *map(str, full)])
        until("the nodes to be idle", lambda: idle(origin) or None)  # noqa: B023


def test_a_cancel_reaches_the_job_at_each_cluster(sites: tuple[Slurm, Slurm]) -> None:
    for origin, other in (sites, sites[::-1]):
        job = origin.submit("--gpus=2", *LATER, body="true")
        until("both clusters to have it", lambda: all(state(site, job) == "PENDING" for site in sites) or None)  # noqa: B023
        other.target.run(["scancel", str(job)])
        until("neither to have it", lambda: all(state(site, job) != "PENDING" for site in sites) or None)  # noqa: B023


def test_what_users_may_not_write_comes_by_no_other_cluster(sites: tuple[Slurm, Slurm]) -> None:
    """A cluster without Berth refuses nothing, and Slurm submits its jobs to the others as root."""
    east, west = sites
    plugins(east, "defaults")
    try:
        fair, foul = (east.submit(gres, *LATER, body="true") for gres in ("--gres=gpu:1", "--gres=gpu:g5:1"))
        until("west to have the one", lambda: state(west, fair) == "PENDING" or None)
        until("west to refuse the other", lambda: east.show(foul)["FedActiveSiblings"] == "berth" or None)
        assert not state(west, foul)
        east.target.run(["scancel", str(fair), str(foul)])
    finally:
        plugins(east, "berth")


def plugins(site: Slurm, listed: str) -> None:
    site.target.bash(
        f"sed -i 's/^JobSubmitPlugins=.*/JobSubmitPlugins={listed}/' /etc/slurm/slurm.conf; svc slurmctld restart",
        user="root",
    )
    until("slurmctld", lambda: "UP" in site.target.run(["scontrol", "ping"], check=False).out or None)
    in_step(site)


def test_outside_of_a_federation_berth_places_jobs_again(sites: tuple[Slurm, Slurm]) -> None:
    sites[0].target.run(["sacctmgr", "-iQ", "delete", "federation", "coast"], user="root")
    for site in sites:
        until("Berth to place jobs", lambda: not left_to_slurm(site) or None)  # noqa: B023
        [probe] = seen(site.finish(job := site.submit("--gpus=2")))
        assert ",".join(map(str, probe.gpus)) == segment_of(site, job)["gpus"]
