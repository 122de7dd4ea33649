# SPDX-License-Identifier: Apache-2.0
"""Runs beside slurmctld: a node joins and leaves, and berth-slurm is asked each time until it shows that."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any

PROGRAM = "/usr/libexec/berth/berth-slurm"
RESTS = 3
"""Seconds after which slurmctld's own note of the last change is in the past: it counts in whole seconds."""


class Reader:
    """The running program, and the nodes that it tells of."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.records: dict[tuple[str, int], list[Any]] = {}

    def read(self) -> tuple[list[str], dict[str, str]]:
        """The nodes of the partition, and each node with its partitions."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("read\n")
        self._process.stdin.flush()
        while (record := json.loads(self._process.stdout.readline()))[0] != "ok":
            if record[0] == "gone":
                self.records.pop((record[1], record[2]), None)
            else:
                self.records[record[0], record[1]] = record
        [partition] = [one for (kind, _), one in self.records.items() if kind == "partition"]
        nodes = {str(one[2]): str(one[12]) for (kind, _), one in self.records.items() if kind == "node"}
        listed = re.findall(r"(?:^|%20| )Nodes=(\S*?)(?:%20| |$)", partition[2])
        return sorted(listed[0].split(",")), dict(sorted(nodes.items()))


def until(reader: Reader, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Asks until the partition and the nodes are these, for 15 s at most."""
    end = time.monotonic() + 15
    while True:
        found = reader.read()
        if (found[0] == names and list(found[1]) == names) or time.monotonic() > end:
            return found
        time.sleep(0.2)


def main() -> None:
    """Prints a line of JSON for each step."""
    time.sleep(RESTS)
    reader = Reader()
    print(json.dumps(["at first", *until(reader, ["m1"])]))
    subprocess.run(["scontrol", "create", "NodeName=late", "CPUs=2", "RealMemory=1000", "State=CLOUD"], check=True)
    print(json.dumps(["joined", *until(reader, ["late", "m1"])]))
    subprocess.run(["scontrol", "delete", "NodeName=late"], check=True)
    print(json.dumps(["left", *until(reader, ["m1"])]))


if __name__ == "__main__":
    main()
