# SPDX-License-Identifier: Apache-2.0
"""Compares what nodes have in use, worked out from the jobs, with what slurmctld says of the nodes.

Arguments: steps, each a command line of bash. After each, a gateway that looked at the nodes before the first step and
not since, and a new one that looks at all, are asked; what differs for a moment is printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from policy.slurm.by_library.libslurm import LibslurmGateway

USED = ("gpus_used", "seats_used", "shared", "cpus_used", "mem_used")


def used(gateway: LibslurmGateway) -> dict[str, list[Any]]:
    """Returns what is in use, by node."""
    return {node.name: [getattr(node, key) for key in USED] for node in gateway.read(ended=False).nodes}


def afresh() -> dict[str, list[Any]]:
    """Returns the same by a look at the nodes."""
    gateway = LibslurmGateway()
    try:
        return used(gateway)
    finally:
        gateway.close()


def main() -> None:
    """Prints a line of JSON for each step."""
    os.environ["BERTH_SLURM_NODES_REST"] = "900000"
    behind = LibslurmGateway()
    behind.read(ended=False)
    del os.environ["BERTH_SLURM_NODES_REST"]
    for step in sys.argv[1:]:
        subprocess.run(["bash", "-c", step], check=True, stdout=subprocess.DEVNULL)
        told: list[Any] = []
        for _ in range(20):
            mine, theirs = used(behind), afresh()
            told = [[name, mine.get(name), theirs[name]] for name in theirs if mine.get(name) != theirs[name]]
            if not told:
                break
            time.sleep(0.3)
        print(json.dumps([step, told, sum(bool(one[0] or one[3]) for one in theirs.values())]))
    behind.close()


if __name__ == "__main__":
    main()
