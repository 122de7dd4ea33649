# SPDX-License-Identifier: Apache-2.0
"""Draws `scontrol update` forms of a job that waits, or runs, and tells what became of the job on one cluster."""

from __future__ import annotations

import json
import random
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.waiting import until

from .compare import difference
from .outcome import Outcome, Request, outcome_from

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
    "TimeLimit": ("3", "30"),
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

AT_ONCE = 12
"""Jobs that run beside each other at first: a job that comes out otherwise then is tried again alone."""
CHUNK = 40
"""Jobs that are submitted before the first is changed."""
UNCHANGED = 30.0
"""Seconds in which no job runs or ends, after which none will start; a third where Slurm says so."""

MARK = "== the next change"
JOB = re.compile(r"\b\d{1,6}(_(\d|\[[\d,-]*\]))?(?!\w|$)")
"""Number of a job in an answer, whose last word is the exit status."""
RUNS, WAITS = "runs", "waits"
SCRIPTS = {RUNS: "", WAITS: "until [ -e go ]; do sleep 0.1; done\n"}
"""What the jobs run; that of a running job waits until it was changed."""


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
        shown = asdict(self)
        del shown["ran"]["environment"]
        return json.dumps(shown)


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


def changed(
    target: Target, every: Sequence[Change], *, folder: str, at_once: int, wait_planned: Callable[[], None]
) -> list[Changed]:
    """Submit jobs, change them all, let so many at once run, and tell what became of each."""
    place = target.run(["mktemp", "-d", "-p", folder]).out.strip()
    for name, begin in SCRIPTS.items():
        script = f"#!/bin/bash\n{begin}srun bash {folder}/task.sh\necho STEP=$?\n"
        target.run(["tee", f"{place}/{name}"], stdin=script)
    submitted = _each(target, every, lambda number, one: _submission(f"{place}/{number}", one))
    ids = [text.strip() if text.strip().isdecimal() else "" for text in submitted]
    for job in [job for job, one in zip(ids, every, strict=True) if job and one.state == "running"]:
        until(f"job {job} to run", partial(_runs, target, job), 300)
    wait_planned()
    said = _each(target, every, lambda number, one: _update(f"{place}/{number}", ids[number], one))
    left = _run(target, [(job, one) for job, one in zip(ids, every, strict=True) if job], at_once) if at_once else {}
    target.bash("scancel -Q --me")
    printed = _each(target, every, lambda number, _: f"cat {place}/{number}/[0-9]* 2>/dev/null; true")
    target.run(["rm", "-rf", place])
    return [
        Changed(
            said=JOB.sub("JOB", _said(text) if job else f"SUBMIT {told}"),
            record=_record(" ".join(re.findall(r"^SHOWN (.*)$", text, re.MULTILINE))),
            ran=outcome_from(0, out, ""),
            never=left.get(job, ""),
        )
        for job, told, text, out in zip(ids, submitted, said, printed, strict=True)
    ]


def _each(target: Target, every: Sequence[Change], commands: Callable[[int, Change], str]) -> list[str]:
    """Run the commands for each change in one shell; what they print."""
    lines = [f"echo '{MARK}'\n{commands(number, one)}" for number, one in enumerate(every)]
    return target.bash("\n".join(lines), timeout=300).out.split(f"{MARK}\n")[1:]


def _said(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("SHOWN "))


def _submission(place: str, change: Change) -> str:
    options = {"held": "-H", "array": "-H --array=1-2", "later": "--begin=now+1hour", "running": ""}[change.state]
    script = WAITS if change.state == "running" else RUNS
    words = f"sbatch --parsable -t9 -o %j {change.options} {options} ../{script}"
    return f"mkdir {place}; cd {place}; {words} </dev/null 2>&1"


def _update(place: str, job: str, change: Change) -> str:
    name = f"JobId={job}{change.task}"
    return f"""
scontrol update {name} {shlex.join(change.words)} 2>&1 </dev/null; echo "UPDATED $?"
scontrol show job -o {job}{change.task} | head -1 | sed 's/^/SHOWN /'; touch {place}/go"""


def _runs(target: Target, job: str) -> bool:
    return target.run(["squeue", "-h", "-j", job, "-o", "%t"]).out.strip() == "R"


def _run(target: Target, jobs: Sequence[tuple[str, Change]], at_once: int) -> dict[str, str]:
    """Let jobs run, so many at once, until none is left that could; the states of those that are left."""
    waiting, since, seen = list(jobs), time.monotonic(), list[tuple[str, str]]()
    while True:
        shown = target.bash(r"squeue -h --me -o '%F %t %r' | sort").out
        lines = [line.split(maxsplit=2) for line in shown.splitlines()]
        never = {job for job, state, why in lines if state == "PD" and why == "BadConstraints"}
        active = {job for job, _, _ in lines} - never - {job for job, _ in waiting}
        # Slurm tells other reasons of a job as often as it is looked at.
        states = sorted((job, state) for job, state, _ in lines)
        if states != seen or any(state != "PD" for _, state in states):
            since, seen = time.monotonic(), states
        if waiting and (len(active) < at_once):
            now, waiting = waiting[: at_once - len(active)], waiting[at_once - len(active) :]
            target.bash("\n".join(_release(job, one) for job, one in now), check=False)
            continue
        if not lines or time.monotonic() > since + (UNCHANGED if active else UNCHANGED / 3):
            return {job: " ".join(sorted({state for one, state, _ in lines if one == job})) for job, _, _ in lines}
        time.sleep(0.4)


def _release(job: str, change: Change) -> str:
    begin = f"; scontrol update JobId={job} StartTime=now" if change.state == "later" else ""
    return f"scontrol release {job} 2>/dev/null{begin}"


def _record(line: str) -> tuple[tuple[str, str], ...]:
    # Without a place of Berth's nothing may tell the node of one.
    line = re.sub(r"\[berth/1[^]]*\]", "" if PLACED.search(line) else "[a place]", line)
    found = {name: value.strip() for name, value in re.findall(r"(?:^| )(\S+?)=(.*?)(?= \S+?=|$)", line)}
    found["ReqTRES"] = re.sub(r",?(gres/(gpu|seat):g\d+|gres/seat)=\d+", "", found.get("ReqTRES", ""))
    return tuple((name, found[name]) for name in SHOWN if found.get(name, "") not in {"", "(null)"})


def request_of(change: Change) -> Request:
    """The request as the comparison of outcomes reads it."""
    return Request("sbatch", tuple(change.options.split()))


OF_A_PIN = (
    *("NumNodes", "TresPerNode", "TresPerJob", "TresPerTask", "ReqNodeList", "ExcNodeList", "ReqTRES", "NumCPUs"),
    "CpusPerTres",
)
"""What a place is written into: a job that keeps its place shows it there, and its request in `asked=`."""

PLACED = re.compile(r"gres/gpu:g\d")


def counts_cpus_anew(plain: Mapping[str, str], berth: Mapping[str, str]) -> bool:
    """Tells whether Slurm raised a job's CPUs to those of its tasks and its GPUs: it does when GRES of a job change."""
    of_tasks = int(berth["NumTasks"]) * int(berth["CPUs/Task"])
    on_each, in_all = (_gpus(berth.get(name, "")) for name in ("TresPerNode", "TresPerJob"))
    gpus = in_all or on_each * int(berth["NumNodes"].partition("-")[0])
    least = max(of_tasks, gpus * _gpus(berth.get("CpusPerTres", "")))
    return int(plain["NumCPUs"]) < least == int(berth["NumCPUs"])


def forgets_its_test(plain: Mapping[str, str], berth: Mapping[str, str]) -> bool:
    """Tells whether plain Slurm alone shows the least nodes for the most too: it has not tested the job since."""
    least = berth["NumNodes"].partition("-")[0]
    return plain["NumNodes"] in {berth["NumNodes"], f"{least}-{least}"}


def bounds_nodes(plain: Mapping[str, str], berth: Mapping[str, str]) -> bool:
    """Tells whether Slurm took the job's GPUs for the most nodes: it does when GRES of a job change."""
    (least, _, most), (bounded_least, _, bounded) = (one["NumNodes"].partition("-") for one in (plain, berth))
    in_all = _gpus(berth.get("TresPerJob", ""))
    return least == bounded_least and bounded == str(in_all) and int(most or least) > in_all


def counts_less_memory(names: set[str], change: Change) -> bool:
    """Tells whether memory for each CPU is counted anew on plain Slurm alone, where a change names the same nodes."""
    fields = {word.partition("=")[0] for word in change.words}
    return names == {"ReqTRES"} and {"NumNodes", "MinCPUsNode"} <= fields


def has_more_nodes_than_gpus(plain: Changed, berth: Changed) -> bool:
    """Tells whether Slurm tested a number of nodes by fewer GPUs (`--gpus`): it does when GRES of a job change."""
    record = dict(plain.record)
    refused = "UPDATED 0" in plain.said and "Invalid generic resource (gres) specification" in berth.said
    return refused and int(record["NumNodes"].partition("-")[0]) > _gpus(record.get("TresPerJob", "")) > 0


def _gpus(text: str) -> int:
    found = re.fullmatch(r"gres/gpu[:=](\d+)", text)
    return int(found[1]) if found else 0


def differs(change: Change, plain: Changed, berth: Changed) -> str:
    """What a user would miss with Berth; empty where nothing."""
    if change.state == "running" and any(word.startswith("ReqNodeList=") for word in change.words):
        # Slurm takes the nodes on which a job runs, and no others: each cluster has chosen its own.
        return ""
    if has_more_nodes_than_gpus(plain, berth):
        return ""
    if plain.said != berth.said:
        refused = "berth: " in berth.said and "UPDATED 0" in plain.said
        return "plain Slurm takes it, Berth refuses it" if refused else "the command says something else"
    one, other = dict(plain.record), dict(berth.record)
    keeps = any(PLACED.search(value) for value in other.values())
    names = {name for name in {*one, *other} if one.get(name) != other.get(name) and not (keeps and name in OF_A_PIN)}
    of_cpus = names <= {"NumCPUs", "ReqTRES", "NumNodes"} and counts_cpus_anew(one, other)
    more_cpus = of_cpus and forgets_its_test(one, other)
    known = more_cpus or (names == {"NumNodes"} and bounds_nodes(one, other)) or counts_less_memory(names, change)
    if names and not known and "UPDATED 0" in plain.said and change.state != "running":
        return "the record says something else: " + ", ".join(sorted(names))
    if plain.never and (more_cpus or not berth.never):
        return ""
    if plain.never != berth.never:
        return f"it never starts: {berth.never}"
    return difference(request_of(change), plain.ran, berth.ran) if not plain.never else ""


def differing(
    pair: tuple[Target, Target], changes: Iterable[Change], *, folder: str, run: bool = True
) -> dict[str, str]:
    """Make each change on both clusters, and twice again alone where it differs; what differs each time, and why.

    What plain Slurm itself does otherwise each time tells nothing. Without `run` the answers and the records alone are
    compared, those of waiting jobs, and the jobs are cancelled.
    """
    every = [change for change in changes if run or change.state != "running"]
    found, plain = dict[Change, str](), dict[Change, set[Changed]]()
    for at_once in (AT_ONCE, 1, 1) if run else (0, 0, 0):
        doubtful = list(found) if plain else every
        found = {}
        for start in range(0, len(doubtful), CHUNK):
            # Jobs that are changed while they run keep their GPUs until then: first those that name their node.
            chunk = sorted(doubtful[start : start + CHUNK], key=_waits_for_no_node)
            for change, one, other in zip(chunk, *_both(pair, chunk, folder, at_once), strict=True):
                plain.setdefault(change, set()).add(one)
                if why := differs(change, one, other):
                    found[change] = why
                    alone = at_once == 1 and f"\n  plain {one.text()}\n  berth {other.text()}"
                    print(f"{change.text()}\n  {why}{alone or ''}", flush=True)
    unsure = [change for change in found if len(plain[change]) > 1]
    print(f"{len(every)} changes, {len(found)} differ, {len(unsure)} of these also on plain Slurm alone", flush=True)
    return {change.text(): why for change, why in found.items() if change not in unsure}


def _waits_for_no_node(change: Change) -> tuple[bool, bool]:
    return change.state != "running", "-w" not in change.options


def _both(
    pair: tuple[Target, Target], every: Sequence[Change], folder: str, at_once: int
) -> tuple[list[Changed], list[Changed]]:
    waits = (lambda: None, partial(_wait_planned, pair[1]))
    with ThreadPoolExecutor(2) as pool:
        plain, berth = pool.map(
            lambda target, wait: changed(target, every, folder=folder, at_once=at_once, wait_planned=wait), pair, waits
        )
    return plain, berth


def _wait_planned(target: Target) -> None:
    """Wait until berthd has twice read all of Slurm from now on, so that each job has its file."""
    for _ in range(2):
        since = time.monotonic() + 1

        def read_since(since: float = since) -> bool:
            return time.monotonic() - float(target.berthd().get("snapshot_age_ms", "inf")) / 1e3 > since

        until("berthd to read Slurm anew", read_since)
