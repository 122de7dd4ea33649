# SPDX-License-Identifier: Apache-2.0
"""A compute node of the test cluster from within, and what jobs that share GPUs do there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from .harness import PROBE, Slurm, until
from .target import Container, Result

NAMES = ("n1", "n2", "n3", "n4")
CONF = "/etc/slurm/berth.conf"
_AGAIN_SECONDS = 6
_SCHED_SECONDS = 60.0
"""Between two of Slurm's own passes, when nothing else makes it look."""
USES_CUDA = "fake-cuda-app alloc=64 hold=300"

# What sharing leaves behind on a node, one line each; silent where there is nothing.
_LEFT = """
pgrep -af 'nvidia-cuda-mps|fake-cuda-app'
ls -A /run/berth/gpus /run/berth/mps 2>/dev/null | grep -v '^/run\\|^$'
cd /run/berth/jobs 2>/dev/null && grep -L '^status=degraded' -- * 2>/dev/null
/opt/berth/bin/python - <<'PY'
from pathlib import Path
from prolog_epilog.node import devices
from prolog_epilog.node.paths import Paths
paths = Paths()
if Path("/run/berth/gpus.json").exists():
    with devices.driver() as driver:
        for gpu in devices.gpus(paths):
            if driver.compute_mode(gpu.uuid):
                print("compute mode of", gpu.uuid, "is", driver.compute_mode(gpu.uuid))
PY
[ $? = 0 ] || echo "the compute modes cannot be read"
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's container."""

    name: str
    target: Container

    def bash(self, script: str, *, user: str = "root", check: bool = True, timeout: float = 90.0) -> str:
        """Runs a script there; what it printed. Its last command must succeed, unless `check` is off."""
        return self.target.bash(script, user=user, check=check, timeout=timeout).out

    def left(self) -> str:
        """Returns what sharing has left on the node."""
        return self.bash(_LEFT)

    @contextmanager
    def without_mps(self) -> Iterator[None]:
        """A driver whose MPS is not installed."""
        with self.broken("mv /usr/bin/nvidia-cuda-mps-control /root/", "mv /root/nvidia-cuda-mps-control /usr/bin/"):
            yield

    @contextmanager
    def broken(self, script: str, mend: str) -> Iterator[None]:
        """Does harm, and undo it."""
        self.bash(script)
        try:
            yield
        finally:
            self.bash(mend)

    def wish(self, **wishes: Any) -> None:
        """Tells the simulated MPS what to do wrong from now on; without words it does nothing wrong."""
        script = "cat > /etc/berth-fake/mps.new && mv /etc/berth-fake/mps.new /etc/berth-fake/mps.json"
        self.target.run(["sh", "-c", script], user="root", stdin=json.dumps(wishes))


def nodes_of(slurm: Slurm) -> dict[str, Node]:
    """The four nodes, where they are containers."""
    if not isinstance(slurm.target, Container) or not slurm.target.name.endswith("-ctl"):
        pytest.skip("the nodes of a Slurm of your own are not looked into")
    cluster = slurm.target.name.removesuffix("ctl")
    return {name: Node(name, Container(cluster + name)) for name in NAMES}


def wake(slurm: Slurm, node: str) -> None:
    """Powers a node up where nodes are powered down; `clear` lets it sleep again."""
    power_up = f"scontrol update NodeName={node} State=POWER_UP"
    slurm.target.bash(f"if [ -d /etc/slurm/power ]; then {power_up}; fi", user="root")
    sinfo = ["sinfo", "-h", "-n", node, "-p", "gpu", "-o", "%T"]
    until(f"{node} to be awake", lambda: slurm.target.run(sinfo, user="root").out.strip() == "idle")


@contextmanager
def berth_conf(slurm: Slurm, lines: str) -> Iterator[None]:
    """More lines in berth.conf of the whole cluster, for a time; berthd begins anew with them."""
    slurm.target.bash(f"cp {CONF} {CONF}.before && cat >>{CONF} <<'END'\n{lines}\nEND", user="root")
    try:
        _begin_anew(slurm)
        yield
    finally:
        slurm.target.bash(f"mv {CONF}.before {CONF}", user="root")
        _begin_anew(slurm)


def _begin_anew(slurm: Slurm) -> None:
    slurm.target.run(["svc", "berthd", "restart"], user="root")
    slurm.berthd("start")


# Jobs


def waiting_body(work: str = USES_CUDA) -> str:
    """A job that shows what it got, uses its GPU, and ends when `let_go` says so."""
    return f"""{PROBE}
env | grep -E '^(CUDA_|SLURM_SHARDS)'
{work} &
until [ -e /home/tests/go.$SLURM_JOB_ID.$SLURM_RESTART_COUNT ]; do sleep 0.2; done
kill $! 2>/dev/null
wait
true
"""


def let_go(slurm: Slurm, *jobs: int) -> None:
    """Lets jobs of `waiting_body` end."""
    words = " ".join(f"/home/tests/go.{job}.{count}" for job in jobs for count in ("", 0, 1, 2))
    slurm.target.bash(f"touch {words}", user="root")


def output(slurm: Slurm, job: int) -> str:
    """Returns what a job has printed so far."""
    return slurm.target.bash(f"cat {slurm.shared}/{job}.out 2>/dev/null", user="root", check=False).out


def said(slurm: Slurm, job: int, nth: int = 0, seconds: float = 60.0) -> Mapping[str, Any]:
    """The nth line of the job's CUDA program."""

    def line() -> Mapping[str, Any] | None:
        # A line that has no end yet may be half a line.
        whole = output(slurm, job).rpartition("\n")[0]
        found = [text for text in whole.splitlines() if text.startswith("{")]
        return dict(json.loads(found[nth])) if len(found) > nth else None

    return until(f"job {job} to say more", line, seconds)


def guard_said(slurm: Slurm, node: str, *words: str, seconds: float = 60.0) -> str:
    """The last line of a node's guard with all these words."""

    def found() -> str | None:
        lines = nodes_of(slurm)[node].bash("svc berth-guard log").splitlines()
        return next((line for line in reversed(lines) if all(word in line for word in words)), None)

    return until(f"the guard of {node} to say {' ... '.join(words)}", found, seconds)


def said_last(slurm: Slurm, lines: int = 30) -> list[tuple[str, str]]:
    """The last lines of each daemon's log on that cluster, each under its name."""
    tail = f"tail -qn {lines} /var/log/cluster"
    heads = ("berthd", "slurmctld")
    found = [(name, slurm.target.bash(f"{tail}/{name}.log", user="root", check=False).out) for name in heads]
    guards = nodes_of(slurm).items()
    found += [(f"berth-guard on {name}", node.bash(f"{tail}/berth-guard.log || true")) for name, node in guards]
    return [(f"the last that {name} said", text) for name, text in found if text.strip()]


def run_again(slurm: Slurm, job: int) -> None:
    """Slurm lets a requeued job wait for two minutes; a test for some seconds: berthd has to see its begin time come.

    Begun at once it would have the pin of a job that may not start yet: a GPU as a whole, without MPS.
    """

    def runs() -> bool:
        record = slurm.show(job)
        # Slurm sets its two minutes when the job has left its nodes: what was said before that is lost.
        with suppress(ValueError):
            begin = datetime.fromisoformat(record["EligibleTime"]).replace(tzinfo=UTC)
            if record["JobState"] == "PENDING" and begin > datetime.now(UTC) + timedelta(seconds=2 * _AGAIN_SECONDS):
                words = [f"JobId={job}", f"StartTime=now+{_AGAIN_SECONDS}"]
                slurm.target.run(["scontrol", "update", *words], user="root", check=False)
        return record["JobState"] == "RUNNING"

    until(f"job {job} to run again", runs, 2 * _SCHED_SECONDS, every=1)


def place(slurm: Slurm, job: int) -> tuple[str, str]:
    """Node and GPUs of a job, as its Extra says."""
    extra = slurm.show(job).get("Extra", "")
    words = dict(word.split("=", 1) for word in extra.strip("[]").split() if "=" in word)
    return words.get("nodes", ""), words.get("gpus", "")


def await_nothing(node: Node, seconds: float = 60.0) -> None:
    """No process, folder, compute mode or share file."""
    until(lambda: f"{node.name} to have nothing left; it has {node.left()}", lambda: not node.left(), seconds)


def assert_nothing_left(slurm: Slurm, *names: str) -> None:
    """No process, folder, compute mode or share file on the nodes, and no reason in Slurm."""
    nodes = nodes_of(slurm)
    for name in names or NAMES:
        await_nothing(nodes[name])
    until("no node to be out of service", lambda: not _reasons(slurm))


def _reasons(slurm: Slurm) -> str:
    result: Result = slurm.target.run(["sinfo", "-h", "-R", "-o", "%N %E"])
    return result.out.strip()
