# SPDX-License-Identifier: Apache-2.0
"""200 jobs with shares on four nodes while all around them breaks: nothing leaks, nothing sticks, books are exact."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.slurm.harness import Slurm, until
from tests.slurm.nodes import NAMES, Node, assert_nothing_left, nodes_of
from tests.slurm.target import Container

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
OWN = os.environ.get("BERTH_TEST_SLURM", "")
PREFIX = os.environ.get("BERTH_CLUSTER_PREFIX") or "berth"
VERSIONS = [OWN] if OWN else os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
SEED = int(os.environ.get("BERTH_TEST_SEED", "1"))
JOBS = 200
LIMIT = 1_200.0
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1_800)]

# The jobs that really share a GPU of the node now, the jobs in its books, and the first again.
_BOOKS = """
sharing() {
    for job in $(ps -eo args | sed -n 's/^slurmstepd: \\[\\([0-9]*\\)\\.batch.*/\\1/p'); do
        grep -qs '^status=ok' /run/berth/jobs/$job && echo -n "$job "
    done
    echo
}
sharing
/opt/berth/bin/python - <<'PY'
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state
print(*sorted(tenant.job for one in state.everything(Paths()) for tenant in one.tenants))
PY
sharing
"""
# What a power cycle does: nothing runs on, the driver has forgotten its modes, and /run is empty.
_REBOOT = """
svc slurmd stop; svc berth-guard stop
pkill -KILL slurmstepd; pkill -KILL -f 'fake-cuda-app|nvidia-cuda-mps|berth-(pro|epi)log'; pkill -KILL -u alice,bob
rm -rf /run/berth /etc/berth-fake/machine.live
svc berth-guard start; svc slurmd start
"""


@pytest.fixture(params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    version = str(request.param)
    if OWN:
        yield Slurm(OWN, Container(OWN))
        return
    subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version], check=True)
    try:
        yield Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


def submit_all(slurm: Slurm, dice: random.Random) -> list[subprocess.Popen[str]]:
    """Two users submit without a pause."""
    submitting = []
    for user in ("alice", "bob"):
        lines = [
            f"sbatch -Q -n1 -t2 --gpu-share={dice.randrange(10, 70, 10)} -o /dev/null"
            f" --wrap 'fake-cuda-app alloc=64 hold={dice.uniform(10, 60):.1f} || true'"
            for _ in range(JOBS // 2)
        ]
        submitting.append(slurm.target.popen("\n".join(lines), user=user))
    return submitting


def queue(slurm: Slurm) -> list[str]:
    return slurm.target.run(["squeue", "-h", "-o", "%i"], user="root").out.split()


def running(slurm: Slurm) -> dict[str, set[int]]:
    """Jobs by node, also those that end just now."""
    lines = slurm.target.run(["squeue", "-h", "-r", "-t", "R,CG,S", "-o", "%N %A"], user="root").out.splitlines()
    found: dict[str, set[int]] = {name: set() for name in NAMES}
    for line in lines:
        node, _, job = line.partition(" ")
        if node in found:
            found[node].add(int(job))
    return found


def books_are_exact(slurm: Slurm, node: Node) -> bool:
    """Every job in the books is there by Slurm's word before or after, and every job that shares all the time is in.

    Slurm's word alone says too much: after a power cycle it takes minutes to see that a job is gone.
    """
    before = running(slurm)[node.name]
    first, books, last = (set(map(int, line.split())) for line in node.bash(_BOOKS).split("\n")[:3])
    return first & last <= books <= before | running(slurm)[node.name]


class Chaos:
    """What happens to a cluster in a bad week."""

    def __init__(self, slurm: Slurm, dice: random.Random) -> None:
        self.slurm, self.dice, self.nodes = slurm, dice, nodes_of(slurm)
        self.done: Counter[str] = Counter()

    def _to_a_job(self, command: str) -> None:
        script = f"squeue -h -r -t R -o %A | shuf -n1 | xargs -r {command}"
        self.slurm.target.bash(script, user="root", check=False)

    def _on_a_node(self, script: str) -> None:
        # On a loaded machine a power cycle, which waits for daemons, takes minutes.
        self.nodes[self.dice.choice(NAMES)].bash(script, check=False, timeout=300.0)

    def cancel(self) -> None:
        self._to_a_job("scancel")

    def kill(self) -> None:
        self._to_a_job("scancel --full --signal=KILL")

    def requeue(self) -> None:
        self._to_a_job("scontrol requeue")

    def kill_slurmd(self) -> None:
        self._on_a_node("svc slurmd kill")

    def kill_prolog(self) -> None:
        self._on_a_node("for i in $(seq 40); do pkill -KILL -f berth-prolog && break; sleep 0.05; done")

    def kill_epilog(self) -> None:
        self._on_a_node("for i in $(seq 40); do pkill -KILL -f berth-epilog && break; sleep 0.05; done")

    def kill_mps(self) -> None:
        self._on_a_node("pkill -KILL -f -o 'nvidia-cuda-mps-control -f'")

    def kill_guard(self) -> None:
        self._on_a_node("svc berth-guard kill")

    def kill_stepd(self) -> None:
        self._on_a_node("pkill -KILL -o slurmstepd")

    def reboot(self) -> None:
        self._on_a_node(_REBOOT)

    def strike(self) -> None:
        """One of them."""
        weights = {
            self.cancel: 6,
            self.kill: 4,
            self.requeue: 2,
            self.kill_slurmd: 2,
            self.kill_prolog: 2,
            self.kill_epilog: 1,
            self.kill_mps: 1,
            self.kill_guard: 1,
            self.kill_stepd: 1,
            self.reboot: 1,
        }
        [what] = self.dice.choices(list(weights), list(weights.values()))
        what()
        self.done[what.__name__] += 1

    def admin(self) -> None:
        """Slurm drains a node whose Prolog was killed, holds its job, and lets requeued jobs wait: undo all that."""
        self.slurm.target.bash(
            """
            sinfo -h -N -t drain,drained,down -o %N | sort -u | while read n; do
                scontrol update NodeName=$n State=RESUME 2>/dev/null
            done
            squeue -h -t PD -o '%A %r' | while read j r; do
                case $r in
                *eld*|*launch*) scontrol release $j ;;
                BeginTime) scontrol update JobId=$j StartTime=now ;;
                esac
            done
            true
            """,
            user="root",
            check=False,
        )


def test_churn(slurm: Slurm) -> None:
    dice = random.Random(SEED)
    slurm.clear()
    chaos = Chaos(slurm, dice)
    submitting = submit_all(slurm, dice)
    began, looked = time.monotonic(), 0
    while any(one.poll() is None for one in submitting) or queue(slurm):
        assert time.monotonic() - began < LIMIT, slurm.target.run(["squeue", "-l"], user="root").out
        if sum(chaos.done.values()) < JOBS // 2:
            chaos.strike()
        if sum(chaos.done.values()) % 4 == 0:
            chaos.admin()
        if sum(chaos.done.values()) % 10 == 9:
            for node in chaos.nodes.values():
                until(f"the books of {node.name} to be exact", partial(books_are_exact, slurm, node), 90)
                looked += 1
    for one in submitting:
        one.communicate()
    chaos.admin()
    _report(slurm, chaos, looked, time.monotonic() - began)
    for node in chaos.nodes.values():
        # What an Epilog that was killed has left: the guard looks once a minute.
        until(f"nothing to be left on {node.name}", partial(_is_clean, node), 150, every=2)
    assert_nothing_left(slurm)
    states = slurm.target.run(["sinfo", "-h", "-N", "-o", "%T"]).out.split()
    assert set(states) == {"idle"}


def _is_clean(node: Node) -> bool:
    return not node.left()


def _report(slurm: Slurm, chaos: Chaos, looked: int, seconds: float) -> None:
    states = slurm.target.run(["scontrol", "show", "job"], user="root", check=False).out
    ends = Counter(
        line.split("=")[1].split()[0] for line in states.splitlines() if line.strip().startswith("JobState=")
    )
    sys.stdout.write(
        json.dumps({"seconds": round(seconds), "looks": looked, "strikes": chaos.done, "still known": ends}) + "\n"
    )
