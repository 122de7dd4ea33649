#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs as root on the virtual machine's own Debian: brings the cluster up and looks what its jobs may open.

usage: guest.py IMAGES    a file or disk that `docker save` wrote

What it finds it prints as lines `VM-RESULT KEY=VALUE`; containers/vm/run.py reads them from the console.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from containers.cluster import Cluster  # noqa: E402 (the repository is not installed here)
from tests.slurm.harness import PROBE, Slurm, seen  # noqa: E402
from tests.slurm.target import Container  # noqa: E402

# Everything is ten to thirty times slower where the processor is emulated.
PATIENCE = 300.0


def tell(key: str, value: object) -> None:
    """Give the host one result."""
    print(f"VM-RESULT {key}={value}", flush=True)


def run(*command: str | Path) -> None:
    """Run a command that has to succeed; its output goes to the console."""
    subprocess.run(command, check=True, cwd=ROOT)


def timed(key: str, *command: str | Path) -> None:
    """Run a command and tell how long it took."""
    started = time.monotonic()
    run(*command)
    tell(f"{key}_seconds", round(time.monotonic() - started, 1))


def first_line(path: str) -> str:
    """A kernel file's first line; empty where there is none."""
    file = Path(path)
    return file.read_text().split("\n")[0] if file.exists() else ""


def describe() -> None:
    """Tell what this machine is."""
    tell("system", platform.freedesktop_os_release()["PRETTY_NAME"])
    tell("kernel", platform.release())
    tell("apparmor", first_line("/sys/module/apparmor/parameters/enabled"))
    done = subprocess.run(["stat", "-fc", "%T", "/sys/fs/cgroup"], capture_output=True, text=True, check=True)
    tell("cgroup", done.stdout.strip())


def describe_engine() -> None:
    """Tell which engine runs here, and how it makes cgroups."""
    words = "{{.ServerVersion}} {{.CgroupDriver}} {{.CgroupVersion}}"
    done = subprocess.run(["docker", "info", "--format", words], capture_output=True, text=True, check=True)
    tell("engine", done.stdout.strip())


def opened(text: str) -> str:
    """Which GPUs every probe in a job's output could open."""
    return " ".join(",".join(map(str, task.gpus)) or "none" for task in seen(text)) or "no probe"


def given(text: str) -> str:
    """The GPUs that Slurm itself says the job has; the job has printed them."""
    return ",".join(re.findall(r"gpu:g\d:1\(IDX:(\d)\)", text)) or "none"


def give_berthd_time(slurm: Slurm) -> None:
    """Lift the 50 ms after which a submission goes on without berthd: an emulated processor may need more."""
    edit = "sed -i 's/^\\[hook\\]$/[hook]\\ndeadline_ms = 1000/' /etc/slurm/berth.conf && scontrol reconfigure"
    slurm.target.bash(edit, user="root")


def look_at_jobs(slurm: Slurm) -> None:
    """Ask in every way, and tell what was given and what opens."""
    probe = f"{slurm.shared}/probe.sh"
    release = f"{slurm.shared}/release"
    look = f"{PROBE}\nscontrol show job -d $SLURM_JOB_ID | grep GRES=\ncat /proc/self/cgroup\n"

    def finish(key: str, job: int) -> str:
        text = slurm.finish(job, PATIENCE)
        tell(key, opened(text))
        tell(f"{key}_given", given(text))
        return text

    first = slurm.submit("--gpus=2", "-C", "v100", body=look)
    tell("sbatch_cgroup", finish("sbatch", first).split("0::")[-1].strip())
    tell("sbatch_comment", slurm.comment(first))

    # Two halves of one node at the same time: neither may reach into the other.
    wait = f"until [ -e {release} ]; do sleep 1; done\n"
    halves = [slurm.submit("--gpus=4", "-C", "v100", body=wait + look) for _ in range(2)]
    for half in halves:
        slurm.wait_state(half, {"RUNNING"}, PATIENCE)
    slurm.target.run(["touch", release])
    for number, half in enumerate(halves, 1):
        finish(f"half{number}", half)

    finish("without", slurm.submit("-C", "v100", body=look))
    for key, words in {
        "srun": ["srun", "--gpus=2", "-C", "a6000", probe],
        "srun_without": ["srun", "-C", "a6000", probe],
        "salloc": ["salloc", "--gpus=4", "-C", "h100", "srun", probe],
    }.items():
        tell(key, opened(slurm.target.run(words, timeout=PATIENCE).out))


def complaint(project: str) -> str:
    """The first error in a slurmd's log."""
    words = ["docker", "exec", f"{project}-n1", "grep", "-m1", "error:", "/var/log/cluster/slurmd.log"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "none"


def left_over(project: str) -> str:
    """What `down` did not remove."""
    mark = f"label=com.docker.compose.project={project}"
    lists: Iterable[list[str]] = (["ps", "--all"], ["network", "ls"], ["volume", "ls"])
    found = [
        subprocess.run(["docker", *words, "--quiet", "--filter", mark], capture_output=True, text=True, check=True)
        for words in lists
    ]
    return " ".join(" ".join(done.stdout.split()) for done in found).strip() or "nothing"


def try_cluster(images: str) -> None:
    """The whole way, from an engine that does not run to an engine that has been stopped again."""
    project = Cluster(os.environ["SLURM"], berth=True).project
    cluster = ROOT / "containers" / "cluster.py"
    describe()
    timed("engine_start", ROOT / "containers" / "bootstrap", "engine-start")
    describe_engine()
    timed("load", "docker", "load", "--quiet", "--input", images)
    timed("up", cluster, "up", "--no-build", "--time-limit", "1200")
    started = time.monotonic()
    slurm = Slurm("vm", Container(f"{project}-ctl"))
    give_berthd_time(slurm)
    look_at_jobs(slurm)
    tell("jobs_seconds", round(time.monotonic() - started, 1))
    tell("slurmd_error", complaint(project))
    timed("down", cluster, "down")
    tell("left_over", left_over(project))
    run(ROOT / "containers" / "bootstrap", "engine-stop")
    active = subprocess.run(["systemctl", "is-active", "docker"], capture_output=True, text=True, check=False)
    tell("engine_after", active.stdout.strip())


def show_logs() -> None:
    """Everything that could explain a failure."""
    commands: list[list[str]] = [["journalctl", "--no-pager", "-u", "docker", "-n", "20"], ["dmesg"]]
    words = ["docker", "ps", "--all", "--format", "{{.Names}}"]
    names = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    commands += [["docker", "logs", "--tail", "60", name] for name in names]
    for command in commands:
        print(f"--- {' '.join(command)}", flush=True)
        subprocess.run(command, check=False)


def guarded(action: Callable[[], None], explain: Callable[[], None] = show_logs) -> int:
    """Tells the host whether the action came to its end; prints the logs where it did not."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 (the only place where it can still be told)
        explain()
        tell("error", f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
        return 1
    tell("end", "reached")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: try_cluster(sys.argv[1])))
