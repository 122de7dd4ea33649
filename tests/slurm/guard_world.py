# SPDX-License-Identifier: Apache-2.0
"""A node with one GPU for host and guest, a neighbour on another, and what the guard does to whom."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .harness import Slurm, until
from .nodes import CONF, Node, nodes_of, output

NAME = "n4"
PYTHON = "/opt/berth/bin/python"
MACHINE = "/etc/berth-fake/machine"
FOLDER = "/tmp/guard-test"

SETTINGS = """
[guard.action]
evict_grace_s = 2
silent_host_s = 2
[guard.machine]
admit_s = 1
cool_down_s = 1
"""
"""Shorter times than a site has, for tests."""

# A job's program. It beats, always alike so that no other program on this machine counts as harm, and obeys the gate as
# its words say; it writes down when it did work, and which signals it got.
_PROGRAM = """
exec {python} - {words} <<'END'
import os, signal, sys, time
from pathlib import Path
from prolog_epilog.injob.job import VARIABLE, Job, words_of
words, name = sys.argv[1:], os.environ["SLURM_JOB_ID"]
def caught(number, _frame):
    with open(f"{folder}/{{name}}.signals", "a") as file:
        print(signal.Signals(number).name, file=file, flush=True)
    if number == signal.SIGTERM and "stubborn" not in words:
        sys.exit(143)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, caught)
if "deaf" in words:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
job = Job(words_of(os.environ.get(VARIABLE, "")) if "gate" in words else ())
job.ready()
print("PID", os.getpid(), flush=True)
with open(f"{folder}/{{name}}.work", "a") as file:
    while True:
        job.gate()
        time.sleep(0.05)
        print(time.monotonic(), job.order().memory, file=file, flush=True)
        job.report_memory(8 << 30, 8 << 30, 0)
        if not Path(f"{folder}/{{name}}.silent").exists():
            job.step(0.05)
END
"""


def program(*words: str) -> str:
    """`gate`: it has one, and beats; `stubborn`: catches signals and goes on; `deaf`: ignores them."""
    return _PROGRAM.format(python=PYTHON, folder=FOLDER, words=" ".join(words) or "plain")


# Which jobs have frozen processes, and how many of Slurm's own are frozen.
_FROZEN = f"""{PYTHON} - <<'END'
import json, os
from contextlib import suppress
from pathlib import Path
root, jobs, stepds = Path("/sys/fs/cgroup"), set(), 0
for folder, _, _ in os.walk(root / "freezer" if (root / "freezer").is_dir() else root):
    for name, word in (("freezer.state", "FROZEN"), ("cgroup.events", "frozen 1")):
        with suppress(OSError):
            if word in Path(folder, name).read_text():
                # The job by what its programs were told: groups bear other names in each version of Slurm.
                for pid in Path(folder, "cgroup.procs").read_text().split():
                    words = Path("/proc", pid, "environ").read_bytes().split(b"\\0")
                    jobs |= {{int(word[13:]) for word in words if word.startswith(b"SLURM_JOB_ID=")}}
                    stepds += Path("/proc", pid, "comm").read_text().strip() == "slurmstepd"
print(json.dumps({{"jobs": sorted(jobs), "stepds": stepds}}))
END"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Two GPUs of the node are not held by somebody else: one has a neighbour, on the other things happen."""

    slurm: Slurm
    node: Node
    neighbour: int

    def submit(self, tier: str, *words: str, body: str = "", user: str = "alice") -> int:
        """A job of a tier on the node, for one GPU; it runs before this returns."""
        need = ["--gpu-mem=1G"] if tier == "guaranteed" else []
        options = [f"--gpu-tier={tier}", *need, "--gpus=1", "-w", NAME, "-n1", "--mem=100", "-t", "30"]
        job = self.slurm.submit(*options, body=body or program(*words), user=user)
        self.slurm.wait_state(job, {"RUNNING"})
        until(f"job {job} to work", lambda: self.work(job) or None)
        return job

    def guest(self, *words: str) -> int:
        """A guest that uses the GPU, as the driver says."""
        job = self.submit("opportunistic", *words)
        self.driver(f"process {self.gpu(job)} {self.pid(job)} type=compute memory=500 real=1")
        return job

    def owner(self, *words: str) -> tuple[int, float]:
        """A job that takes no guest beside it, and the seconds until its first line."""
        began = time.monotonic()
        job = self.submit("exclusive", *words)
        return job, time.monotonic() - began

    def job_without_a_berth(self, gpu: int, body: str) -> int:
        """Submits a job that Slurm places, as if Berth had failed."""
        slurm = self.slurm
        return slurm.submit(
            "-p", "plain", "-w", NAME, "-n1", "--mem=10", f"--gres=gpu:g{gpu}:1", body=body, user="root"
        )

    def gpu(self, job: int) -> int:
        """The GPU's position."""
        found = self.slurm.show(job).get("Extra", "").split("gpus=")[1]
        return int(found.split()[0].rstrip("]"))

    def pid(self, job: int) -> int:
        """The program's process on the node."""

        def found() -> int | None:
            lines = [line for line in output(self.slurm, job).splitlines() if line.startswith("PID ")]
            return int(lines[-1].split()[1]) if lines else None

        return until(f"job {job} to name its process", found)

    def driver(self, statement: str) -> None:
        """Makes something happen to the device."""
        self.node.bash(f"echo '{statement}' >>{MACHINE}.live")

    def work(self, job: int) -> list[float]:
        """The times at which the job did something."""
        lines = self.node.bash(f"cat {FOLDER}/{job}.work 2>/dev/null", check=False).splitlines()
        return [float(line.split()[0]) for line in lines if len(line.split()) == 2]

    def asked_memory(self, job: int) -> int:
        """Bytes that the job is asked to make do with."""
        lines = self.node.bash(f"tail -n 1 {FOLDER}/{job}.work 2>/dev/null", check=False).split()
        return int(lines[1]) if len(lines) == 2 else 0

    def silence(self, job: int) -> None:
        """Stops the job's heartbeat."""
        self.node.bash(f"touch {FOLDER}/{job}.silent")

    def duty(self, job: int) -> int:
        """Returns the duty that the guard allows, in permille."""
        return int(
            self.node.bash(
                f"{PYTHON} -c 'from pathlib import Path; from prolog_epilog.injob.word import map_order, read_order;"
                f' print(*(read_order(map_order(one.with_suffix(""))).duty'
                f' for one in Path("/run/berth/words/{job}").glob("*.order")))\''
            )
        )

    def frozen(self) -> dict[str, Any]:
        """Returns the jobs that are frozen, and the number of frozen slurmstepds."""
        found: dict[str, Any] = json.loads(self.node.bash(_FROZEN))
        assert found["stepds"] == 0, "Slurm's own process must always hear"
        return found

    def works_on(self, job: int, seconds: float = 20.0) -> None:
        """Waits for the job's next work."""
        before = len(self.work(job))
        until(f"job {job} to work on", lambda: len(self.work(job)) > before + 2 or None, seconds)

    def said(self, words: str, seconds: float = 30.0) -> str:
        """Waits for the guard to say something; the line."""

        def found() -> str | None:
            lines = self.node.bash("svc berth-guard log").splitlines()
            return next((line for line in reversed(lines) if words in line), None)

        return until(f"the guard to say {words!r}", found, seconds)

    def put_back(self, job: int, seconds: float = 30.0) -> None:
        """Waits until a guest was put back into the queue; it may run again by now."""
        until(f"job {job} to be put back", lambda: self.slurm.show(job)["Restarts"] == "1" or None, seconds)

    def assert_neighbour_untouched(self) -> None:
        """Checks that the neighbour was started once, got no signal, and works on."""
        record = self.slurm.show(self.neighbour)
        assert (record["JobState"], record["Restarts"]) == ("RUNNING", "0")
        assert self.node.bash(f"cat {FOLDER}/{self.neighbour}.signals 2>/dev/null", check=False) == ""
        assert self.neighbour not in self.frozen()["jobs"]
        self.works_on(self.neighbour)


@contextmanager
def scene(slurm: Slurm) -> Iterator[Scene]:
    """Lays out the scene; afterwards everything is as it was."""
    node = nodes_of(slurm)[NAME]
    node.bash(f"rm -rf {FOLDER}; install -d -m 1777 {FOLDER}; rm -f {MACHINE}.live; svc berth-guard restart")
    slurm.target.run(["svc", "berthd", "restart"], user="root")
    slurm.berthd("start")
    slurm.hold_gpus(NAME, range(2, 8))
    made = Scene(slurm, node, 0)
    made = Scene(slurm, node, made.submit("exclusive", user="bob"))
    try:
        yield made
        made.assert_neighbour_untouched()
    finally:
        node.bash("svc berth-guard start")
        slurm.berthd("start")
        slurm.clear()
        node.bash(f"rm -f {MACHINE}.live; svc berth-guard restart")


def kill_wait(slurm: Slurm, seconds: int) -> None:
    """Has all of Slurm wait so long between SIGTERM and SIGKILL."""
    slurm.target.bash(
        f"sed -i 's/^KillWait=.*/KillWait={seconds}/' /etc/slurm/slurm.conf && scontrol reconfigure", user="root"
    )
    until(
        "Slurm to know its new KillWait",
        lambda: f"KillWait                = {seconds} " in slurm.target.run(["scontrol", "show", "config"]).out or None,
    )


@contextmanager
def guard_conf(slurm: Slurm, lines: str) -> Iterator[None]:
    """More lines in berth.conf for the guard, for a time, in which Slurm itself is slow to kill what it ends."""
    slurm.target.bash(f"cp {CONF} {CONF}.guard && cat >>{CONF} <<'END'\n{lines}\nEND", user="root")
    kill_wait(slurm, 30)
    try:
        yield
    finally:
        kill_wait(slurm, 5)
        slurm.target.bash(f"mv {CONF}.guard {CONF}", user="root")
        nodes_of(slurm)[NAME].bash("svc berth-guard restart")
