# SPDX-License-Identifier: Apache-2.0
"""The test cluster as the demo uses it: submits jobs, waits for them, and says who did what."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rich.console import Console

from policy.formats import segment
from topology.model import Machine
from topology.scores import Score, encode

T = TypeVar("T")

SLOW = 1.25
"""The score of the slow GPU: its steps take 25 % longer."""
FABRIC = "SwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n4\nSwitchName=spine Switches=leaf[1-2]\n"
_FOLDER = "/etc/slurm/berth"
_KEYS = f'scores = "{_FOLDER}/demo.csv"\\nfabric = "{_FOLDER}/demo.conf"'
# Both files are read by berthd only: Slurm has its default, a topology without switches.
_PREPARE = f"""
cat >{_FOLDER}/demo.csv <<'END'
{{scores}}
END
printf '{FABRIC}' >{_FOLDER}/demo.conf
grep -q demo.csv /etc/slurm/berth.conf ||
    sed -i 's|^\\[berthd\\]$|[berthd]\\n{_KEYS}|' /etc/slurm/berth.conf
svc berthd restart
for i in $(seq 100); do berth status >/dev/null 2>&1 && break; sleep 0.1; done
"""
_CLEAR = r"""
squeue -h -o %A | sort -u | xargs -r scancel --quiet
for i in $(seq 200); do
    [ -z "$(squeue -h -o %i)" ] && [ -z "$(sinfo -h -N -o %T | grep -vx idle)" ] && break
    sleep 0.1
done
"""


def inside(container: str, script: str, user: str) -> subprocess.Popen[str]:
    """Starts a script in a container and goes on."""
    process = subprocess.Popen(
        ["docker", "exec", "-i", "-u", user, container, "bash", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe, as asked for above
    process.stdin.write(script)
    process.stdin.close()
    process.stdin = None
    return process


def read(container: str, script: str, user: str = "root") -> str:
    """Runs a script in a container; returns what it wrote."""
    return inside(container, script, user).communicate(timeout=300)[0]


@dataclass
class Site:
    """A cluster that is up, and the place where the scenes tell what they see."""

    controller: str
    machines: dict[str, Machine]
    console: Console
    slow: int = 0
    """The slow GPU of n2: the one that Slurm gives first."""

    def prepare(self) -> None:
        """Gives berthd the made-up scores and leaves of the demo."""
        self.read("install -d -m 1777 /home/demo")
        first = self.submit("-p plain -C h100 --gpus=1")
        self.runs(first)
        self.slow = self.gpu(first)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3_600))
        table = [
            Score(
                node,
                gpu.position,
                gpu.uuid,
                "compute",
                SLOW if (node, gpu.position) == ("n2", self.slow) else 1.0,
                3,
                0.01,
                at,
            )
            for node, machine in self.machines.items()
            for gpu in machine.gpus
        ]
        self.read(_PREPARE.format(scores=encode(table).strip()))

    def read(self, script: str, user: str = "root") -> str:
        """Runs a script on the controller; returns what it wrote."""
        return read(self.controller, script, user)

    def submit(self, options: str, body: str = "exec sleep 300", user: str = "alice") -> int:
        """Submits a batch job; returns its number."""
        tasks = 2 if "-N2" in options else 1
        words = f"sbatch --parsable -n{tasks} --mem=100 -o /home/demo/%j {options}"
        return int(self.read(f"{words} <<'END'\n#!/bin/bash\n{body}\nEND\n", user).strip())

    def show(self, job: int) -> dict[str, str]:
        """Returns Slurm's record of a job."""
        words = self.read(f"scontrol -o show job {job}").split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def segment(self, job: int) -> dict[str, str]:
        """Returns what berthd wrote into a job's record."""
        text = self.read(f"scontrol show job {job} | sed -n 's/^ *AdminComment=//p'")
        return dict(segment.fields(text.strip()) or {})

    def gpu(self, job: int) -> int:
        """Returns the first GPU that a job has, by Slurm's record."""
        found = re.search(r"IDX:(\d+)", self.read(f"scontrol show job -d {job}"))
        return int(found[1]) if found else -1

    def until(self, what: str, look: Callable[[], T | None], seconds: float = 60.0) -> T:
        """Waits until something is there; returns it."""
        due = time.monotonic() + seconds
        while not (found := look()):
            if time.monotonic() > due:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}, in vain")
            time.sleep(0.1)
        return found

    def runs(self, *jobs: int, seconds: float = 60.0) -> None:
        """Waits until jobs run."""
        for job in jobs:
            self.until(f"job {job} to run", partial(self._runs, job), seconds)

    def _runs(self, job: int) -> bool:
        return self.show(job)["JobState"] == "RUNNING"

    def output(self, job: int) -> str:
        """Returns what a job has written by now."""
        return self.read(f"cat /home/demo/{job} 2>/dev/null")

    def settle(self) -> None:
        """Waits until berthd has read Slurm from now on."""
        since = time.monotonic()

        def has_read() -> bool:
            status = json.loads(self.read("berth status --json") or "{}")
            return time.monotonic() - float(status.get("snapshot_age_ms", 1e9)) / 1e3 > since + 0.5

        self.until("berthd to read Slurm", lambda: has_read() or None)

    def clear(self) -> None:
        """Cancels all jobs, and waits until the nodes are idle and berthd has seen it."""
        self.read(_CLEAR)
        self.settle()

    def tell(self, who: str, text: str) -> None:
        """Says what one part of the system did."""
        self.console.print(f"  [bold]{who:<16}[/bold] {text}", highlight=False)

    def scene(self, title: str) -> None:
        """Begins a scene."""
        self.console.print(f"\n[bold cyan]{title}[/bold cyan]", highlight=False)
