"""A job that may be split over nodes, where a QOS gives each job one node. `make test-hard`.

berthd does not read limits of accounts and QOS.
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

LIMITED = """
sacctmgr -iQ add user root account=research
sacctmgr -iQ add qos one set MaxTRESPerJob=node=1
sacctmgr -iQ add qos deny set MaxTRESPerJob=node=1 Flags=DenyOnLimit
sacctmgr -iQ modify user alice set QosLevel+=one,deny
echo AccountingStorageEnforce=limits,qos,associations >>/etc/slurm/slurm.conf
svc slurmctld restart
for i in $(seq 300); do scontrol ping | grep -q UP && exit 0; sleep 0.1; done
exit 1
"""


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    version = str(request.param)
    subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version, "--profile", "accounting"], check=True)
    try:
        found = Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
        found.target.bash(LIMITED, user="root")
        found.berthd("stop")
        found.berthd("start")
        yield found
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


@pytest.mark.parametrize("qos", ["one", "deny"])
def test_a_job_whose_limit_is_one_node_waits_for_one_as_on_plain_slurm(slurm: Slurm, qos: str) -> None:
    slurm.clear()
    hold = [slurm.hold_gpus(node, range(7)) for node in ("n1", "n2")]
    asked = ("-q", qos, "--gpus=2", "-x", "n3,n4", "--mem=300")

    plain = slurm.submit("-p", "plain", *asked, body="exec sleep 300")
    job = slurm.submit("--locality=any", *asked, body="exec sleep 300")
    for one in (plain, job):
        until("it to wait", lambda one=one: slurm.show(one)["Reason"] != "None" or None)  # type: ignore[misc]
        assert not slurm.show(one)["Reason"].startswith("QOS")
    assert dict(segment.fields(slurm.comment(job)) or {})["n"] == "1"

    slurm.target.run(["scancel", str(plain), str(hold[0]), str(hold[1])], user="root")
    slurm.wait_state(job, {"RUNNING"})
    assert slurm.show(job)["NumNodes"] == "1"
