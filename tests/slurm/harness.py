# SPDX-License-Identifier: Apache-2.0
"""Submits jobs to a cluster, waits for them, and tries which GPU devices they can open."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tests.told import Told
from tests.waiting import until
from topology.files import decode
from topology.model import Machine

from .target import Container, Result, Target

__all__ = ["PROBE", "Seen", "Slurm", "everywhere", "job_id", "seen", "until"]

# Prints which GPU device files open: an allowed one answers ENXIO (there is no hardware), a denied one EPERM.
PROBE = """
open=""
said=$(for k in 0 1 2 3 4 5 6 7; do echo "<$k>"; : < /dev/nvidia$k; done 2>&1)
for k in 0 1 2 3 4 5 6 7; do
    one=${said#*<$k>}
    case "${one%%<*}" in
        *"No such device or address"*) open="$open,$k" ;;
        *"not permitted"*) ;;
        *) open="$open,error-$k" ;;
    esac
done
node=${SLURMD_NODENAME:-$(hostname)}
echo "PROBE host=$node task=${SLURM_PROCID:-batch} gpus=${open#,} cuda=${CUDA_VISIBLE_DEVICES-}"
"""
PROBE_LINE = re.compile(r"PROBE host=(\S+) task=(\S+) gpus=(\S*) cuda=(\S*)")
T = TypeVar("T")
#: Seconds after which berthd reads again what of Slurm it reads seldom: partitions, reservations, nodes at rest.
READ_SELDOM = 1.0
FREE_TEXT = {"AdminComment", "Comment", "Extra", "SubmitLine", "Command"}
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One task's node, the GPUs whose device file it could open, and its CUDA_VISIBLE_DEVICES."""

    node: str
    task: str
    gpus: tuple[int, ...]
    cuda: str


def seen(text: str) -> list[Seen]:
    """Every probe line in a job's output."""
    return [
        Seen(node, task, tuple(int(gpu) for gpu in gpus.split(",") if gpu), cuda)
        for node, task, gpus, cuda in PROBE_LINE.findall(text)
    ]


class Slurm:
    """A running cluster as its users and its admin see it."""

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self.target = target
        self.is_clear = False
        self.shared = "/home/tests"
        self.target.bash(f"install -d -m 1777 {self.shared}", user="root")
        self._write(f"{self.shared}/probe.sh", "#!/bin/bash\n" + PROBE)

    @cached_property
    def version(self) -> tuple[int, int]:
        words = self.target.run(["sinfo", "--version"]).out.split()[1].split(".")
        return int(words[0]), int(words[1])

    @cached_property
    def machines(self) -> dict[str, Machine]:
        """The nodes' topology files, as berthd reads them."""
        text = self.target.bash("for f in /etc/slurm/berth/topology/*.json; do cat $f; echo; echo ---; done").out
        machines = [decode(json.loads(part)) for part in text.split("\n---\n") if part.strip()]
        return {machine.node: machine for machine in machines}

    def _write(self, path: str, text: str) -> None:
        self.target.run(["tee", path], user="root", stdin=text)
        self.target.run(["chmod", "755", path], user="root")

    # Submitting

    def sbatch(
        self, *options: str, body: str = PROBE, head: str = "", user: str = "alice", check: bool = True
    ) -> Result:
        """Submits a batch job; its output goes to the shared folder."""
        script = f"#!/bin/bash\n{head}\n{body}\n"
        fixed = ["-o", f"{self.shared}/%j.out", "-t", "5"]
        return self.target.run(["sbatch", *fixed, *options], user=user, stdin=script, check=check)

    def submit(self, *options: str, body: str = PROBE, head: str = "", user: str = "alice") -> int:
        """Submits a batch job that must be accepted; its id."""
        return job_id(self.sbatch(*options, body=body, head=head, user=user))

    def hold_gpus(self, node: str, gpus: Sequence[int], seconds: int = 600) -> int:
        """Occupies exact GPUs, as only root may ask for them."""
        typed = ",".join(f"gpu:g{gpu}:1" for gpu in gpus)
        job = job_id(
            self.target.run(
                [
                    "sbatch",
                    "-p",
                    "plain",
                    "-t",
                    str(seconds // 60),
                    "-w",
                    node,
                    "-n1",
                    "--mem=10",
                    f"--gres={typed}",
                    "-o",
                    "/dev/null",
                    "--wrap",
                    f"exec sleep {seconds}",
                ],
                user="root",
            )
        )
        self.wait_state(job, {"RUNNING"})
        self.settle()
        return job

    # Looking

    def show(self, job: int) -> dict[str, str]:
        """Returns `scontrol show job` as a mapping; a free text has a line of its own."""
        text = self.target.run(["scontrol", "show", "job", "-d", str(job)], user="root", check=False).out
        record: dict[str, str] = {}
        for line in text.splitlines():
            key, _, value = line.strip().partition("=")
            words = [(key, value)] if key in FREE_TEXT else re.findall(r"(\S+?)=(\S*)", line)
            for name, content in words:
                record.setdefault(name, content)
        return Told(record, f"Slurm's record of job {job}")

    def comment(self, job: int) -> str:
        return self.show(job).get("AdminComment", "")

    def state(self, job: int) -> str:
        return self.show(job).get("JobState", "")

    def wait_state(self, job: int, states: set[str], seconds: float = 60.0) -> str:
        def told() -> str:
            record = self.show(job)
            shown = " ".join(f"{name}={record.get(name, '')}" for name in ("JobState", "Reason", "NodeList"))
            return f"job {job} in {sorted(states)}; it has {shown}"

        return until(told, lambda: s if (s := self.state(job)) in states else None, seconds)

    def finish(self, job: int, seconds: float = 120.0) -> str:
        """Waits for a job's end; its output."""
        state = self.wait_state(job, ENDED, seconds)
        text = self.target.bash(f"cat {self.shared}/{job}.out 2>/dev/null", user="root", check=False).out
        assert state == "COMPLETED", f"job {job} ended as {state}: {text}"
        return text

    def run_probe(self, *options: str, user: str = "alice") -> list[Seen]:
        """Submits the probe as a batch job and say what it saw."""
        return seen(self.finish(self.submit(*options, user=user)))

    def controller_log(self) -> str:
        return self.target.bash("svc slurmctld log", user="root").out

    # The admin's hands

    def clear(self) -> None:
        """Cancels everything, wake or start berthd, and wait until the nodes are idle."""
        self.target.bash(
            """
            squeue -h -o %A | sort -u | xargs -r scancel --quiet
            svc berthd resume 2>/dev/null
            svc berthd start
            # One that has answered once goes on to.
            if ! cmp -s /run/cluster/berthd.pid /run/cluster/berthd.answered; then
                for i in $(seq 100); do
                    cp /run/cluster/berthd.pid /run/cluster/berthd.answered
                    berth status >/dev/null 2>&1 && break
                    rm -f /run/cluster/berthd.answered
                    sleep 0.1
                done
            fi
            for i in $(seq 300); do
                busy=$(squeue -h -o %i; sinfo -h -N -o %T | grep -vx 'idle~\\?')
                [ -z "$busy" ] && break
                sleep 0.1
            done
            [ -z "$busy" ] || { sinfo -N -l; squeue; exit 1; }
            [ -d /etc/slurm/power ] || exit 0
            # Where nodes are powered down, each test begins with all of them asleep. One that is told once more when it
            # already sleeps (~) goes to sleep again as soon as it is powered up: so not those on their way (! and %).
            for i in $(seq 300); do
                up=$(sinfo -h -N -o '%N %T' | grep -v 'idle~')
                [ -z "$up" ] && exit 0
                awake=$(grep -v '[!%]$' <<<"$up" | cut -d' ' -f1 | sort -u | paste -sd,)
                [ -z "$awake" ] || scontrol update NodeName="$awake" State=POWER_DOWN_FORCE 2>/dev/null
                sleep 0.3
            done
            sinfo -N -l; squeue; exit 1
            """,
            user="root",
        )
        self.is_clear = True

    def berthd(self, verb: str) -> None:
        """start, stop, pause or resume the daemon; after a start, wait until it has read Slurm."""
        self.target.run(["svc", "berthd", verb], user="root")
        if verb == "start":
            until("berthd to read Slurm", self._berthd_is_ready)

    def _berthd_is_ready(self) -> bool:
        """Tells whether berthd has read Slurm: before that it leaves all jobs to Slurm."""
        status = self.target.berthd()
        return "snapshot_age_ms" in status and "problem" not in status

    @property
    def can_reconfigure(self) -> bool:
        return isinstance(self.target, Container)

    def restart_controller(self, job_submit_plugins: str) -> None:
        """Restarts slurmctld with these plugins; its jobs stay."""
        self.target.bash(
            f"sed -i 's/^JobSubmitPlugins=.*/JobSubmitPlugins={job_submit_plugins}/' /etc/slurm/slurm.conf;"
            " svc slurmctld restart;"
            " for i in $(seq 200); do scontrol ping | grep -q UP && exit 0; sleep 0.1; done; exit 1",
            user="root",
        )
        self.clear()
        self.passes()
        self.settle()

    def settle(self) -> None:
        """Waits until berthd has read Slurm from now on, and sees as many GPUs free as Slurm does."""
        since = time.monotonic()

        def agreed() -> bool:
            gres = re.findall(r"GresUsed=(\S+)", self.target.run(["scontrol", "show", "node", "-d"], user="root").out)
            used = sum(len(set(re.findall(r"(?:gpu:(g\d+):1|shard:(g\d+):[1-9]\d*)\(", node))) for node in gres)
            now, status = time.monotonic(), self.target.berthd()
            # As many may be free though another job holds them: one ended and one began since it read.
            return (
                "problem" not in status
                and now - float(status.get("snapshot_age_ms", "inf")) / 1e3 > since
                and int(status.get("gpus", 0)) - int(status.get("free_gpus", 0)) == used
                and len(gres) > 0
            )

        until("berthd to see the same GPUs free as Slurm", agreed)

    def passes(self, count: int = 2) -> None:
        """Waits until berthd has read all of Slurm so often from now on: all but the last of these passes are over."""
        for _ in range(count):
            since = time.monotonic() + READ_SELDOM

            def read_since(since: float = since) -> bool:
                now, status = time.monotonic(), self.target.berthd()
                return "problem" not in status and now - float(status.get("snapshot_age_ms", "inf")) / 1e3 > since

            until("berthd to read Slurm anew", read_since)

    def berthd_status(self) -> dict[str, str]:
        """Returns what `berth status` prints."""
        status: dict[str, str] = json.loads(self.target.run(["berth", "status", "--json"], user="root").out)
        return status


def everywhere(clusters: dict[str, Slurm], work: Callable[[Slurm], T]) -> dict[str, T]:
    """Does the same on all clusters side by side: most of it is waiting for Slurm."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(clusters, pool.map(work, clusters.values()), strict=True))


def job_id(result: Result) -> int:
    found = re.search(r"Submitted batch job (\d+)|^(\d+)$", result.out, re.MULTILINE)
    assert found, f"no job id in {result.text!r}"
    return int(found[1] or found[2])
