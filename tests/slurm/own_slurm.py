# SPDX-License-Identifier: Apache-2.0
"""A slurmctld, and a slurmd for each of its nodes, beside the cluster in its controller's container.

They have a folder and ports of their own, so that a test can give them any configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from .harness import Slurm
from .target import Container


class OwnSlurm:
    """Daemons of our own in the container of a cluster's controller."""

    def __init__(self, slurm: Slurm, folder: str, port: int) -> None:
        if not isinstance(slurm.target, Container):
            pytest.skip("it starts daemons and makes device files: only in a container")
        self.target = slurm.target
        self.folder = folder
        self.port = port

    def start(self, files_: Mapping[str, str], nodes: Mapping[str, str]) -> None:
        """Writes the configuration and start slurmctld, and a slurmd for each node; `nodes` are their words."""
        names = {node: f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1" for node in nodes}
        lines = [f"{names[node]} Port={port} {nodes[node]}" for port, node in enumerate(nodes, self.port + 1)]
        host = self.target.run(["hostname"]).out.strip()
        settings = SETTINGS.format(folder=self.folder, port=self.port, host=host)
        self.target.bash(f"{STOP.format(folder=self.folder)} mkdir -p {self.folder}/state", user="root")
        for name, text in files_.items() | {"cgroup.conf": "CgroupPlugin=disabled\n"}.items():
            whole = "\n".join([settings, text, *lines, ""]) if name == "slurm.conf" else text
            self.target.run(["tee", f"{self.folder}/{name}"], user="root", stdin=whole)
        self.ask("slurmctld")

    def start_nodes(self, nodes: Mapping[str, str]) -> None:
        """Starts a slurmd for each node."""
        script = START_NODES.format(folder=self.folder)
        self.target.run(["bash", "-s", *nodes], user="root", stdin=script)

    def ask(self, *command: str, check: bool = True) -> str:
        """Runs one of its commands; slurmd -G answers on standard error."""
        settings = {"SLURM_CONF": f"{self.folder}/slurm.conf"}
        return self.target.run(command, user="root", env=settings, check=check).text

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes as slurmctld knows them."""
        return {node["name"]: node for node in json.loads(self.ask("scontrol", "show", "node", "--json"))["nodes"]}

    def stop(self) -> None:
        """Ends the daemons and leave nothing."""
        self.target.bash(STOP.format(folder=self.folder), user="root")


SETTINGS = """
ClusterName=round-trip
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# The nodes claim CPUs that this machine does not have.
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES State=UP
"""

START_NODES = """
set -e
export SLURM_CONF={folder}/slurm.conf
for minor in $(seq 0 7); do
    [ -e /dev/nvidia$minor ] && continue
    echo /dev/nvidia$minor >>{folder}/devices
    mknod /dev/nvidia$minor c 195 $minor
done
for node in "$@"; do
    mkdir {folder}/spool.$node
    slurmd -N $node
done
"""

STOP = """
pids=$(cat {folder}/*.pid 2>/dev/null)
kill $pids 2>/dev/null
# slurmctld writes its state after it has removed its pid file.
for i in $(seq 200); do kill -0 $pids 2>/dev/null || break; sleep 0.05; done
kill -KILL $pids 2>/dev/null
cat {folder}/devices 2>/dev/null | xargs -r rm -f
rm -rf {folder}
"""
