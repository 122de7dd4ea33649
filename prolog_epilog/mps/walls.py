# SPDX-License-Identifier: Apache-2.0
"""The kernel's limit on a job's GPU memory (cgroup controller `dmem`): the only one that no environment can undo.

It belongs to the job's cgroup, which Slurm makes after the Prolog. The guard sets it when it sees the cgroup, and
raises the level of enforcement with it. It ends with the cgroup: nothing is reserved (no soft limit), so nothing is
left.
"""

from dataclasses import replace
from pathlib import Path

from prolog_epilog.mps.lifecycle import method_of
from prolog_epilog.mps.limits import Level
from prolog_epilog.node import devices
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state as states


def raise_wall(paths: Paths, job: int, cgroup: Path) -> Level | None:
    """Holds the job's processes at its memory on each of its GPUs; returns the level that is now in force.

    Returns None if this node has no such limit, or the job asked for none: then the level stays what the Prolog wrote.
    """
    for state in states.everything(paths):
        tenant = state.tenant(job)
        if tenant is None or tenant.mem_mib is None:
            continue
        with devices.driver() as driver:
            held = [driver.limit_memory(uuid, str(cgroup), tenant.mem_mib) for uuid in state.uuids]
        if not all(held):
            return None
        level = method_of(state).level(state, replace(tenant, mem_mib=None))
        words, _, _ = level.text.partition("; ")
        return Level(f"{level.name}+dmem", f"{words}; the kernel holds its memory at {tenant.mem_mib} MiB on each GPU")
    return None
