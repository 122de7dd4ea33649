# SPDX-License-Identifier: Apache-2.0
"""Runs beside slurmctld: two of the program berth-slurm, one of which asks for states first, must read the same.

Argument: the program, then steps, each a command line of bash or `update JOB CHANGES` for the first of them. After each
step both read, and what differs is printed, with what the look at states cost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

# When a job is expected to start changes with each pass of backfill, and no state with it.
MOVING = (5, 7, 8, 9, 17)
"""Priority, times and the reason, by their places in a record."""


class BerthSlurm:
    """A running program, and the records that it has told of."""

    def __init__(self, path: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.records: dict[tuple[str, int], list[Any]] = {}

    def ask(self, command: str) -> list[list[Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        found: list[list[Any]] = []
        while True:
            record = json.loads(self._process.stdout.readline())
            if record[0] == "error":
                raise RuntimeError(f"{command}: {record[1]}")
            if record[0] == "ok":
                return found
            found.append(record)

    def read(self, command: str = "read") -> int:
        found = self.ask(command)
        for record in found:
            if record[0] == "gone":
                self.records.pop((record[1], record[2]), None)
            else:
                self.records[record[0], record[1]] = record[1:]
        return sum(record[0] == "job" for record in found)


def jobs(program: BerthSlurm) -> dict[int, list[Any]]:
    """The jobs that it knows, without what moves by itself."""
    return {
        number: [value for place, value in enumerate(record) if place not in MOVING]
        for (kind, number), record in program.records.items()
        if kind == "job"
    }


def differences(first: BerthSlurm, whole: BerthSlurm) -> list[Any]:
    """Returns where the two differ and stay so for a moment, since Slurm goes on in between."""
    told: list[Any] = []
    for _ in range(4):
        first.read()
        whole.records.clear()
        whole.read("read all")
        mine, theirs = jobs(first), jobs(whole)
        told = [[number, mine.get(number), theirs.get(number)] for number in mine.keys() | theirs.keys()]
        told = [one for one in told if one[1] != one[2]]
        if not told:
            return []
        time.sleep(0.3)
    return told


def main() -> None:
    """Prints a line of JSON for each step."""
    path, *steps = sys.argv[1:]
    first, whole = BerthSlurm(path, BERTH_SLURM_STATES_FROM="1"), BerthSlurm(path, BERTH_SLURM_STATES_FROM="4000000")
    first.read("read all")
    for step in steps:
        # The whole look comes every five seconds: this one shall tell by states.
        first.read()
        if step.startswith("update "):
            first.ask(step)
        else:
            subprocess.run(["bash", "-c", step], check=True, stdout=subprocess.DEVNULL)
        print(json.dumps([step, differences(first, whole)]))


if __name__ == "__main__":
    main()
