"""What became of one request on one cluster, in terms that two clusters must agree on."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.target import Target

TASK = r"""
open=0
for k in 0 1 2 3 4 5 6 7; do
    case "$( ( : < /dev/nvidia$k ) 2>&1 )" in *"No such device or address"*) open=$((open + 1)) ;; esac
done
cuda=0; [ -z "$CUDA_VISIBLE_DEVICES" ] || cuda=$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | wc -l)
echo "TASK node=${SLURMD_NODENAME:-$(hostname)} cpus=${SLURM_CPUS_ON_NODE:-0} open=$open cuda=$cuda"
"""
"""Prints what a task has: its CPUs, the GPU devices that open, the GPUs that CUDA would show."""

BATCH = "#!/bin/bash\n{head}\nsrun bash {task}\necho STEP=$?\n"
"""A batch script whose step asks for nothing of its own."""

_TASK_LINE = re.compile(r"TASK node=(\S+) cpus=(\d+) open=(\d+) cuda=(\d+)")
_OURS = re.compile(r"^\w+: (?:error: )?(?:berth: |berth \d|--).*$")
_JOB_NUMBERS = re.compile(r"\b(?:job|StepId=|JobId=) ?\d+\S*")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a user would notice; node names are not part of it, since two clusters choose differently."""

    rc: int
    tasks: tuple[tuple[tuple[int, int, int], ...], ...]
    """For each node, sorted: for each task there its CPUs, GPUs that open, GPUs that CUDA shows."""
    said: str
    """Slurm's own words where it failed."""
    memory: str = ""
    billed: str = ""
    steps: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Request:
    """A command with options, or a batch script whose `#SBATCH` lines say them."""

    command: str
    options: tuple[str, ...]

    def text(self) -> str:
        return f"{self.command} {shlex.join(self.options)}"


def outcome_of(target: Target, request: Request, *, folder: str, user: str = "alice", seconds: int = 40) -> Outcome:
    """Run one request to its end."""
    options = shlex.join(request.options)
    task, script, out = f"{folder}/task.sh", f"{folder}/batch.sh", f"{folder}/batch.out"
    if request.command == "sbatch":
        line = f"sbatch -Q -W -t1 -o {out} {options} {script}; rc=$?; cat {out} 2>/dev/null; rm -f {out}; exit $rc"
    else:
        line = f"srun -Q -t1 --immediate={seconds} {options} bash {task}"
    done = target.run(["timeout", str(seconds + 10), "bash", "-c", line], user=user, check=False, timeout=seconds + 30)
    by_node: dict[str, Counter[tuple[int, int, int]]] = {}
    for node, cpus, opened, cuda in _TASK_LINE.findall(done.out):
        by_node.setdefault(node, Counter())[int(cpus), int(opened), int(cuda)] += 1
    said = "" if done.rc == 0 else _words(done.err + done.out)
    return Outcome(
        rc=done.rc,
        tasks=tuple(sorted(tuple(sorted(tasks.elements())) for tasks in by_node.values())),
        said=said,
        steps="".join(re.findall(r"STEP=(\d+)", done.out)),
    )


def prepare(target: Target, folder: str) -> None:
    """Lay the scripts where all nodes and users read them."""
    target.bash(f"install -d -m 1777 {folder}", user="root")
    for name, text in (("task.sh", TASK), ("batch.sh", BATCH.format(head="", task=f"{folder}/task.sh"))):
        target.run(["tee", f"{folder}/{name}"], user="root", stdin=text)


def _words(text: str) -> str:
    """The error sentences without numbers and names that differ from run to run, and without Berth's own."""
    lines = (line for line in text.splitlines() if "error" in line and not _OURS.match(line))
    return " / ".join(dict.fromkeys(re.sub(r"\bn[1-8]\b", "NODE", _JOB_NUMBERS.sub("JOB", line)) for line in lines))
