# SPDX-License-Identifier: Apache-2.0
"""Jobs that may be split over nodes, where limits count GPUs alone, and where a QOS gives each job one node.

`make test-hard`. berthd looks at the limits in slurmdbd once a minute, and when it starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import PREFIX
from policy.formats import segment
from tests.slurm.harness import Slurm, until
from tests.slurm.target import Container

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]

ENFORCED = """
sacctmgr -iQ add user root account=research
sacctmgr -iQ add qos gpus set MaxTRESPerJob=gres/gpu=4 GrpTRES=gres/gpu=16
sacctmgr -iQ modify account research set GrpTRES=gres/gpu=24
echo AccountingStorageEnforce=limits,qos,associations >>/etc/slurm/slurm.conf
svc slurmctld restart
for i in $(seq 300); do scontrol ping | grep -q UP && exit 0; sleep 0.1; done
exit 1
"""

LIMITED = """
sacctmgr -iQ add qos one set MaxTRESPerJob=node=1
sacctmgr -iQ add qos deny set MaxTRESPerJob=node=1 Flags=DenyOnLimit
sacctmgr -iQ modify user alice set QosLevel+=one,deny
"""

TWO = ("--gpus=2", "-x", "n3,n4", "--mem=300")
"""Two GPUs of n1 and n2."""


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    version = str(request.param)
    subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version, "--profile", "accounting"], check=True)
    try:
        found = Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
        found.target.bash(ENFORCED, user="root")
        found.berthd("stop")
        found.berthd("start")
        yield found
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


@pytest.fixture(scope="module")
def limited(slurm: Slurm) -> Slurm:
    slurm.target.bash(LIMITED, user="root")
    slurm.berthd("stop")
    slurm.berthd("start")
    return slurm


def test_a_job_is_split_where_limits_count_gpus_alone(slurm: Slurm) -> None:
    slurm.clear()
    for node in ("n1", "n2"):
        slurm.hold_gpus(node, range(7))

    def started() -> str | None:
        job = slurm.submit("--locality=any", *TWO, body="exec sleep 300")
        if "splits" in dict(segment.fields(slurm.comment(job)) or {}):
            slurm.wait_state(job, {"RUNNING"})
            return slurm.show(job)["NumNodes"]
        slurm.target.run(["scancel", str(job)], user="root")
        return None

    assert until("berthd to have looked at the limits", started, every=1.0) == "2"


@pytest.mark.parametrize("qos", ["one", "deny"])
def test_a_job_whose_limit_is_one_node_waits_for_one_as_on_plain_slurm(limited: Slurm, qos: str) -> None:
    slurm = limited
    slurm.clear()
    hold = [slurm.hold_gpus(node, range(7)) for node in ("n1", "n2")]
    asked = ("-q", qos, *TWO)

    plain = slurm.submit("-p", "plain", *asked, body="exec sleep 300")
    job = slurm.submit("--locality=any", *asked, body="exec sleep 300")
    for one in (plain, job):
        until("it to wait", lambda one=one: slurm.show(one)["Reason"] != "None" or None)  # type: ignore[misc]
        assert not slurm.show(one)["Reason"].startswith("QOS")
    assert dict(segment.fields(slurm.comment(job)) or {})["n"] == "1"

    slurm.target.run(["scancel", str(plain), str(hold[0]), str(hold[1])], user="root")
    slurm.wait_state(job, {"RUNNING"})
    assert slurm.show(job)["NumNodes"] == "1"
