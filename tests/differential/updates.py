"""Draws `scontrol update` forms of a job that waits, or runs, and tells what became of the job on one cluster."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .compare import difference
from .outcome import Outcome, Request, outcome_from
from .side_by_side import USERS

if TYPE_CHECKING:
    from tests.slurm.target import Target

ASKED: tuple[str, ...] = (
    *("--gpus=1", "--gpus=2", "--gpus=2 -c3", "--gpus=2 --cpus-per-gpu=2", "--gres=gpu:2", "--gres=gpu:1 -N2"),
    *(
        "-n2 --gpus-per-task=1",
        "--gpus=4 -n2",
        "--gres=gpu:2 --mem=500",
        "--gpus=2 --mem-per-gpu=300",
        "-w n2 --gpus=1",
    ),
    *("--gpus-per-node=2 -N1 -n2", "--gres=gpu:1 -x n1", "--gpus=2 --mem-per-cpu=100", "--gpus=2 -N1"),
)
"""Requests of the jobs that are changed."""

STATES = ("held", "held", "later", "array", "running")
"""`later` waits for its begin time; an `array` is held, and changed as a whole or in one task."""

FIELDS: dict[str, tuple[str, ...]] = {
    "Gres": ("gpu:1", "gpu:3", "gres/gpu:2", ""),
    "TresPerNode": ("gres/gpu:2", "gres/gpu:3"),
    "TresPerJob": ("gres/gpu:1", "gres/gpu:4", ""),
    "TresPerTask": ("gres/gpu:1",),
    "NumNodes": ("1", "2", "1-2"),
    "NumCPUs": ("2", "3", "6"),
    "NumTasks": ("1", "2", "4"),
    "CPUsPerTask": ("1", "2", "3"),
    "MinCPUsNode": ("2", "4"),
    "MinMemoryNode": ("100", "900"),
    "MinMemoryCPU": ("100", "200"),
    "ReqNodeList": ("n2", "n3", "n9", ""),
    "ExcNodeList": ("n1", ""),
    "Features": ("h100", "v100|h100", ""),
    "TimeLimit": ("2", "3"),
    "Extra": ("mine", ""),
    "Comment": ("mine",),
    "Requeue": ("0", "1"),
    "Nice": ("10",),
    "JobName": ("other",),
}
"""Fields of an update, and values for each."""

REMOVES_GPUS = frozenset({"Gres=", "TresPerJob="})

SHOWN = (
    *("JobName", "NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "MinCPUsNode", "MinMemoryNode", "MinMemoryCPU"),
    *("TresPerNode", "TresPerJob", "TresPerTask", "Features", "ReqNodeList", "ExcNodeList", "TimeLimit", "Comment"),
    *("Requeue", "ReqTRES", "Extra", "CpusPerTres", "MemPerTres"),
)
"""What is read of the job's record."""

CHANGE = r"""
job=$(sbatch --parsable -t1 -o %j $OPTIONS ../script </dev/null 2>/dev/null) || { echo "SUBMIT $job"; exit 9; }
[ "$STATE" != running ] || for _ in $(seq 80); do [ "$(squeue -h -j "$job" -o %t)" = R ] && break; sleep 0.1; done
sleep "$WAIT"
scontrol update JobId="$job$TASK" $WORDS 2>&1 </dev/null; echo "UPDATED $?"
scontrol show job -o "$job$TASK" | head -1 | sed 's/^/SHOWN /'
scontrol release "$job" 2>/dev/null; [ "$STATE" != later ] || scontrol update JobId="$job" StartTime=now
for _ in $(seq "$SECONDS_LONG"); do [ -z "$(squeue -h -j "$job")" ] && break; sleep 0.5; done
[ -z "$(squeue -h -j "$job")" ] || echo "NEVER $(squeue -h -j "$job" -o %t | sort -u)"
scancel -Q "$job"
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A job, and an update of it."""

    options: str
    state: str
    words: tuple[str, ...]
    task: str = ""
    """The part of an array that is changed; empty for the whole job."""

    def text(self) -> str:
        return f"{self.state} job of {self.options}: scontrol update JobId=J{self.task} {shlex.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Changed:
    """What a user sees of a change."""

    said: str
    record: tuple[tuple[str, str], ...]
    ran: Outcome
    never: str

    def text(self) -> str:
        return json.dumps(asdict(self))


def at_random(seed: int, count: int) -> Iterator[Change]:
    """So many changes, each once; half of them of one field."""
    drawn, seen = random.Random(seed), set[Change]()
    while len(seen) < count:
        state = drawn.choice(STATES)
        names = drawn.sample(sorted(FIELDS), drawn.choice((1, 1, 2, 3)))
        words = tuple(f"{name}={drawn.choice(FIELDS[name])}" for name in names)
        one = Change(drawn.choice(ASKED), state, words, drawn.choice(("", "_1")) if state == "array" else "")
        if one not in seen:
            seen.add(one)
            yield one


def changed(target: Target, change: Change, *, folder: str, seconds: int = 30, user: str = "alice") -> Changed:
    """Submit a job, change it, let it start, and tell what became of it."""
    options = {"held": "-H", "array": "-H --array=1-2", "later": "--begin=now+1hour", "running": ""}[change.state]
    body = "sleep 6" if change.state == "running" else ":"
    values = {
        "FOLDER": folder,
        "OPTIONS": f"{change.options} {options}",
        "STATE": change.state,
        "TASK": change.task,
        "SECONDS_LONG": str(2 * seconds),
    }
    script = f"#!/bin/bash\n{body}\nsrun bash {folder}/task.sh\necho STEP=$?\n"
    lines = [
        *(f"{name}={shlex.quote(value)}" for name, value in values.items()),
        'WAIT=2; out=$(mktemp -d -p "$FOLDER"); cd "$out" || exit 9',
        """trap 'cat "$out"/[0-9]* 2>/dev/null; cd /; rm -rf "$out"' EXIT""",
        f"cat >script <<'END'\n{script}END",
        CHANGE.replace("$WORDS", shlex.join(change.words)).replace("../script", "script"),
    ]
    done = target.run(["bash", "-s"], user=user, check=False, timeout=seconds * 4 + 60, stdin="\n".join(lines))
    said = [line for line in done.out.splitlines() if not re.match(r"(TASK|HAS|ENV|SHOWN|STEP|NEVER)\b", line)]
    shown = re.findall(r"^SHOWN (.*)$", done.out, re.MULTILINE)
    return Changed(
        said=re.sub(r"\b\d{1,6}(_\d)?\b(?!$)", "JOB", "\n".join(said)),
        record=_record(shown[0] if shown else ""),
        ran=outcome_from(0, done.out, done.err),
        never=" ".join(re.findall(r"^NEVER (.*)$", done.out, re.MULTILINE)),
    )


def _record(line: str) -> tuple[tuple[str, str], ...]:
    line = re.sub(r"\[berth/1[^]]*\]", "", line)
    found = dict(re.findall(r"(?:^| )(\S+?)=(.*?)(?= \S+?=|$)", line))
    found["ReqTRES"] = re.sub(r",?(gres/(gpu|seat):g\d+|gres/seat)=\d+", "", found.get("ReqTRES", ""))
    return tuple((name, found[name]) for name in SHOWN if found.get(name, "") not in {"", "(null)"})


def request_of(change: Change) -> Request:
    """The request as the comparison of outcomes reads it."""
    return Request("sbatch", tuple(change.options.split()))


OF_A_PIN = ("NumNodes", "TresPerNode", "TresPerJob", "TresPerTask", "ReqNodeList", "ExcNodeList", "ReqTRES", "NumCPUs")
"""What a place is written into: a job that keeps its place shows it there, and its request in `asked=`."""

PLACED = re.compile(r"gres/gpu:g\d")


def differs(change: Change, plain: Changed, berth: Changed) -> str:
    """What a user would miss with Berth; empty where nothing."""
    if plain.said != berth.said:
        refused = "berth: " in berth.said and "UPDATED 0" in plain.said
        return "plain Slurm takes it, Berth refuses it" if refused else "the command says something else"
    one, other = dict(plain.record), dict(berth.record)
    keeps = any(PLACED.search(value) for value in other.values())
    names = {name for name in {*one, *other} if one.get(name) != other.get(name) and not (keeps and name in OF_A_PIN)}
    if names and "UPDATED 0" in plain.said and change.state != "running":
        return "the record says something else: " + ", ".join(sorted(names))
    if plain.never != berth.never:
        return f"it never starts: {berth.never or 'on plain Slurm'}"
    return difference(request_of(change), plain.ran, berth.ran) if not plain.never else ""


def differing(pair: tuple[Target, Target], changes: Iterable[Change], *, folder: str) -> dict[str, str]:
    """Make each change on both clusters, and again alone where it differs; what differs three times, and why."""
    every, found = list(changes), dict[str, str]()
    with ThreadPoolExecutor(len(USERS)) as pool:
        first = pool.map(
            lambda one: _both(pair, one[1], folder, USERS[one[0] % len(USERS)]), list(enumerate(every)), timeout=None
        )
        for number, (change, two) in enumerate(zip(every, first, strict=True)):
            if differs(change, *two):
                found[change.text()] = differs(change, *two)
                print(f"{number}: {change.text()}\n  {found[change.text()]}", flush=True)
    for change in every:
        for _ in range(2):
            if change.text() in found:
                plain, berth = _both(pair, change, folder, USERS[0])
                found[change.text()] = why = differs(change, plain, berth)
                if not why:
                    del found[change.text()]
                    continue
                print(f"again: {change.text()}\n  {why}\n  plain {plain.text()}\n  berth {berth.text()}", flush=True)
    print(f"{len(every)} changes, {len(found)} differ", flush=True)
    return found


def _both(pair: tuple[Target, Target], change: Change, folder: str, user: str) -> tuple[Changed, Changed]:
    with ThreadPoolExecutor(2) as pool:
        plain, berth = pool.map(lambda target: changed(target, change, folder=folder, user=user), pair)
    return plain, berth
