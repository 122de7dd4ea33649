# SPDX-License-Identifier: Apache-2.0
"""A node that leaves, and comes back under its name with other GPUs."""

from __future__ import annotations

import json
import re

import pytest

from topology.files import decode

from .harness import Slurm, until
from .nodes import nodes_of, wake
from .test_planner import segment_of

MACHINE = "/etc/berth-fake/machine"
# The guard reads the UUIDs where the real driver's kernel module shows them.
SHOW = f"""
mountpoint -q /proc/driver || mount -t tmpfs none /proc/driver
sed -n 's/^gpu \\([0-9]*\\) minor=\\([0-9]*\\) uuid=\\([^ ]*\\).*/\\1 \\2 \\3/p' {MACHINE} |
while read -r place minor uuid; do
	mkdir -p "/proc/driver/nvidia/gpus/$place"
	printf 'GPU UUID: \\t %s\\nDevice Minor: \\t %s\\n' "$uuid" "$minor" >"/proc/driver/nvidia/gpus/$place/information"
done
svc berth-guard restart
"""
DISCOVER = f"BERTH_FAKE_NVML={MACHINE} berth topo discover --node n2 --output /etc/slurm/berth/topology/n2.json"


@pytest.mark.hard
def test_a_node_with_other_gpus_is_slurms_until_it_is_read_again(slurm: Slurm) -> None:
    if not slurm.can_reconfigure:
        pytest.skip("only the Dockerized cluster's nodes are ours to change")
    wake(slurm, "n2")
    node = nodes_of(slurm)["n2"].target
    was = node.run(["cat", MACHINE], user="root").out
    try:
        node.run(["svc", "slurmd", "stop"], user="root")
        node.run(["tee", MACHINE], user="root", stdin=re.sub("uuid=GPU-[0-9a-f]{8}", "uuid=GPU-0000beef", was))
        node.bash(f"svc slurmd start\n{SHOW}", user="root")

        until("Berth to leave n2 to Slurm", lambda: state_of(slurm) == "passed" or None, 60)
        node.bash(DISCOVER, user="root")
        until("Berth to place jobs on n2 again", lambda: state_of(slurm) == "placed" or None, 60)
    finally:
        node.run(["tee", MACHINE], user="root", stdin=was)
        node.bash(f"{SHOW}{DISCOVER}", user="root")
        until("Berth to place jobs on n2 again", lambda: state_of(slurm) == "placed" or None, 60)


def state_of(slurm: Slurm) -> str:
    """Returns the state of a job for n2 in Berth's segment."""
    job = slurm.submit("--gpus=2", "-w", "n2", "-H", body="true")
    state = segment_of(slurm, job).get("state", "")
    slurm.target.run(["scancel", str(job)], user="root")
    return state


def test_a_nodes_topology_file_comes_to_the_controller_by_a_job(slurm: Slurm) -> None:
    """The command of docs/admin/install.md for controllers that share no folder with the nodes."""
    if not slurm.can_reconfigure:
        pytest.skip("the driver is simulated on the Dockerized cluster only")
    discover = ["env", f"BERTH_FAKE_NVML={MACHINE}", "berth", "topo", "discover", "--output", "-"]
    asked = ["srun", "-w", "n1", "--exclusive", "--gpus-per-node=8", "--chdir=/", *discover]

    found = decode(json.loads(slurm.target.run(asked, user="root", timeout=60).out))

    assert found.node == "n1"
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in slurm.machines["n1"].gpus]
