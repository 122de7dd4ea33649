# SPDX-License-Identifier: Apache-2.0
"""Keeps what tells why a job failed: its output, and what the daemons said of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from policy.formats import hostlist
from tests.hard.faults.jobs import OUTPUT
from tests.hard.faults.site import FaultySite

_LINES = 15


@dataclass(slots=True)
class FailedJob:
    """A job that failed, and what was said of it."""

    id: int
    kind: str
    why: str
    node: str
    output: list[str] = field(default_factory=list)
    controller: list[str] = field(default_factory=list)
    berthd: list[str] = field(default_factory=list)
    on_the_node: list[str] = field(default_factory=list)


def keep(site: FaultySite, job: int, kind: str, why: str, nodes: str) -> FailedJob:
    """Fetch all that was said of a job; it is fetched soon after its end."""
    output = site.slurm.target.bash(f"tail -n 40 {OUTPUT}/{job}", user="root", check=False).out.splitlines()
    names = [name for name in hostlist.expand(nodes) if name in site.nodes] if nodes else []
    kept = FailedJob(job, kind, why, nodes, output)
    word = f"(^|[^0-9]){job}([^0-9]|$)"
    for lines in site.log("slurmctld", f"JobId=([0-9]+_[0-9]+\\()?{job}([^0-9]|$)").values():
        kept.controller += lines[-_LINES:]
    for lines in site.log("berthd", word).values():
        kept.berthd += lines[-_LINES:]
    for name in names[:1]:
        script = (
            f"cd /var/log/cluster; grep -hE '{word}' {site.slurmd_of(name)}.log berth-guard.log | tail -n {2 * _LINES}"
        )
        kept.on_the_node += site.host_of(name).bash(script, check=False).splitlines()
    return kept
