# SPDX-License-Identifier: Apache-2.0
"""What became of one request on one cluster, in terms that two clusters must agree on."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from . import rest

if TYPE_CHECKING:
    from tests.slurm.target import Target

TASK = r"""
open=0
for k in 0 1 2 3 4 5 6 7; do
    case "$( ( : < /dev/nvidia$k ) 2>&1 )" in *"No such device or address"*) open=$((open + 1)) ;; esac
done
cuda=0; [ -z "$CUDA_VISIBLE_DEVICES" ] || cuda=$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | wc -l)
where="job=$SLURM_JOB_ID.$SLURM_STEP_ID node=${SLURMD_NODENAME:-$(hostname)}"
echo "TASK $where cpus=${SLURM_CPUS_ON_NODE:-0} open=$open cuda=$cuda"
if [ "${SLURM_PROCID:-0}" = 0 ] && [ "${SLURM_STEP_ID:-0}" = 0 ]; then
    echo "HAS $(scontrol show job -o "$SLURM_JOB_ID" | grep -o ' AllocTRES=[^ ]*')"
    env | grep -E '^(SLURM|CUDA|GPU|ROCR|ZE)[A-Z_]*=' | sed 's/^/ENV /'
fi
"""
"""Prints what a task has: its CPUs, the GPU devices that open, the GPUs that CUDA would show; the first also more."""

RUN = r"""
out=$(mktemp -d -p "$FOLDER"); cd "$out" || exit 9
trap 'cat "$out"/* 2>/dev/null; rm -rf "$out"' EXIT
"""

_TASK_LINE = re.compile(r"TASK job=(\S+) node=(\S+) cpus=(\d+) open=(\d+) cuda=(\d+)")
_OURS = re.compile(r"^\w+: (?:error: )?(?:berth: |berth \d|--).*$")
_JOB_NUMBERS = re.compile(r"\b(?:job|StepId=|JobId=) ?\d+\S*")

ITS_OWN = re.compile(
    r"SLURM_(?:JOB_?ID|ARRAY_JOB_ID|ARRAY_TASK_ID|HET_JOB_ID\w*|STEP_?ID|.*NODELIST|.*NODENAME|TOPOLOGY_ADDR|.*PORT|.*HOST|.*IPADDR|"
    r".*START_TIME|.*END_TIME|.*PID|.*SUBMIT_DIR|.*_UID|.*_GID|SUBMIT_HOST|.*CONF|WORKING_CLUSTER|JOB_GPUS|STEP_GPUS|"
    r"GTIDS|NODEID|LOCALID|.*HASH|.*SLUID|OOM_KILL_STEP|.*COMMENT|SRUN_COMM_HOST|.*KEY)|SLURMD_\w+"
)
"""Variables that differ from job to job, whoever places it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a user would notice; node names are not part of it, since two clusters choose differently."""

    rc: int
    tasks: tuple[tuple[tuple[int, int, int], ...], ...]
    """For each step and node, sorted: for each task there its CPUs, GPUs that open, GPUs that CUDA shows."""
    said: str
    """Slurm's own words where it failed; of `--test-only` every line, since it prints nothing else."""
    has: str = ""
    """What the job holds and is billed for."""
    steps: str = ""
    """How its steps ended."""
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What its first task reads of Slurm."""

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Request:
    """A job, as one of the ways to ask for it.

    `sbatch`, `srun`, `salloc`, `#SBATCH` lines, variables (`SBATCH_`, `SALLOC_`, and srun's `SLURM_`), or the fields of
    a job that `slurmrestd` sends.
    """

    command: str
    options: tuple[str, ...]
    step: tuple[str, ...] = ()
    """Options of each step of a job that has a script."""

    def text(self) -> str:
        step = f" -- srun {shlex.join(self.step)}" if self.step else ""
        return f"{self.command} {shlex.join(self.options)}{step}"


def outcome_of(target: Target, request: Request, *, folder: str, user: str = "alice", seconds: int = 40) -> Outcome:
    """Run one request to its end."""
    lines = f"FOLDER={folder}\n{RUN}{_commands(request, f'{folder}/task.sh', seconds)}\n"
    done = target.run(
        ["timeout", str(seconds + 10), "bash", "-s"], user=user, check=False, timeout=seconds + 30, stdin=lines
    )
    if done.rc:
        # A job that did not start would stand before the next request's.
        target.run(["scancel", "--quiet", "-u", user], user=user, check=False)
    found = outcome_from(done.rc, done.out, done.err)
    return replace(found, said=_every_line(done.err)) if done.rc == 0 and tests_only(request) else found


def outcome_from(rc: int, out: str, err: str) -> Outcome:
    """Read what the tasks and the commands have printed."""
    nodes: dict[tuple[str, str], Counter[tuple[int, int, int]]] = defaultdict(Counter)
    for job, node, cpus, opened, cuda in _TASK_LINE.findall(out):
        nodes[job, node][int(cpus), int(opened), int(cuda)] += 1
    return Outcome(
        rc=rc,
        tasks=tuple(sorted(tuple(sorted(tasks.elements())) for tasks in nodes.values())),
        said="" if rc == 0 else _words(err + out),
        has=" ".join(sorted(_has(text) for text in re.findall(r"^HAS +AllocTRES=(\S+)", out, re.MULTILINE))),
        steps="".join(sorted(re.findall(r"^STEP=(\d+)", out, re.MULTILINE))),
        environment=_environment(out),
    )


def prepare(target: Target, folder: str) -> None:
    """Lay the script where all nodes and users read it."""
    target.bash(f"install -d -m 1777 {folder}", user="root")
    target.run(["tee", f"{folder}/task.sh"], user="root", stdin=TASK)


def _commands(request: Request, task: str, seconds: int) -> str:
    """What a shell runs."""
    every_part = ("--het-group=0,1",) if ":" in request.options else ()
    variables, options = _as_variables(request) if request.command.endswith("_") else ("", shlex.join(request.options))
    step = shlex.join(request.step or every_part)
    quiet = "" if tests_only(request) else "-Q"
    if request.command in {"srun", "SLURM_"}:
        return f"{variables} srun {quiet} -t1 --immediate={seconds} {options} bash {task} </dev/null"
    if request.command in {"salloc", "SALLOC_"}:
        return f"{variables} salloc -Q -t1 --immediate={seconds} {options} srun {step} bash {task} </dev/null"
    if request.command == "slurmrestd":
        return rest.commands(request.options, f"#!/bin/bash\nsrun {step} bash {task}\necho STEP=$?\n")
    head, given = "", options
    if request.command == "#SBATCH":
        head, given = "".join(f"#SBATCH {line}\n" for line in _joined(request.options)), ""
    script = f"#!/bin/bash\n{head}srun {step} bash {task}\necho STEP=$?\n"
    run = f"{variables} sbatch {quiet} -W -t1 -o %j {given} script"
    write = f"cat >../script.$$ <<'END'\n{script}END\nmv ../script.$$ script"
    return f"{write}\n{run} </dev/null; rc=$?; rm -f script; exit $rc"


def tests_only(request: Request) -> bool:
    """Tells whether the request asks when it would start, and no more."""
    return "--test-only" in request.options


def _joined(options: tuple[str, ...]) -> list[str]:
    """Options with their values, one a line: `-C h100` are two words on a command line."""
    lines: list[str] = []
    for word in options:
        if lines and not word.startswith("-"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


_OF_ALL = (
    *("gpus", "gres", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task", "cpus-per-gpu", "gpu-bind"),
    *("mem-per-gpu", "mem-per-cpu", "exclusive", "hint", "threads-per-core"),
)
_OF_SRUN = ("ntasks-per-node", "ntasks-per-gpu")
_SHORT = {"-n": "NTASKS", "-N": "JOB_NUM_NODES", "-c": "CPUS_PER_TASK"}
"""srun's too."""


def _as_variables(request: Request) -> tuple[str, str]:
    """What the command reads from its environment, and the options that have no variable."""
    names = {f"--{name}": name.upper().replace("-", "_") for name in _OF_ALL} | {"--mem": "MEM_PER_NODE"}
    if request.command == "SLURM_":
        names |= {f"--{name}": name.upper().replace("-", "_") for name in _OF_SRUN} | _SHORT
    variables, left = [], []
    for word in request.options:
        name, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if name in names and value:
            variables.append(f"{request.command}{names[name]}={shlex.quote(value)}")
        else:
            left.append(word)
    return " ".join(variables), shlex.join(left)


def _has(tres: str) -> str:
    """What a job holds, without what is Berth's own to count."""
    return ",".join(one for one in tres.split(",") if not one.startswith(("gres/seat", "gres/gpu:", "license/berth_")))


def _environment(text: str) -> dict[str, str]:
    found = (line.partition("=") for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE))
    return {name: value for name, _, value in found if not ITS_OWN.fullmatch(name)}


def _words(text: str) -> str:
    """The error sentences without numbers and names that differ from run to run, and without Berth's own."""
    lines = (line for line in text.splitlines() if "error" in line and not _OURS.match(line))
    return " / ".join(dict.fromkeys(re.sub(r"\bn[1-8]\b", "NODE", _JOB_NUMBERS.sub("JOB", line)) for line in lines))


def _every_line(text: str) -> str:
    """All that a command said, without what differs from run to run: numbers, times and names of nodes."""
    lines = (re.sub(r" on nodes \S+", " on nodes NODES", line) for line in text.splitlines())
    return " / ".join(re.sub(r"[0-9][0-9:T-]*", "N", line) for line in lines)
