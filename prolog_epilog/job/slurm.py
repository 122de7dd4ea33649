# SPDX-License-Identifier: Apache-2.0
"""The node side's questions to Slurm: rare, with a clean environment, and with short time limits."""

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prolog_epilog.errors import Imitated, NodeSlurmError, TookTooLong
from prolog_epilog.node import children

PREFIXES = ("/usr", "/usr/local", "/opt/slurm", "/usr/local/slurm")
"""The places where Slurm's commands and Berth's programs are looked for, as in front/berth-prolog."""
_PLACES = tuple(f"{prefix}/bin/scontrol" for prefix in PREFIXES)
_JOB_SECONDS = 1.0
_CHANGE_SECONDS = 5.0
_RUNS = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
_IMITATES = "the job's texts imitate what scontrol prints; its GPUs are not known"
_ON_ITS_WAY_BACK = frozenset({"COMPLETING", "PENDING", "REQUEUED"})
_PLACE = re.compile(r"\s+Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)\s*")
_GRES = re.compile(r"(?<![\w/])(gpu|shard|seat)(?::([^:,()]+))?:(\d+)(?:\(([^)]*)\))?")
_OUR_TYPE = re.compile(r"g(0|[1-9][0-9]?)")
_STATE = re.compile(r"^   JobState=(\S+)", re.MULTILINE)
_NODES = re.compile(r"^   NodeList=(\S+)$", re.MULTILINE)
_IDS = re.compile(r"^JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) )?", re.MULTILINE)
_HET = re.compile(r"JobId=\d+ [^\n]*?HetJobId=(\d+) HetJobOffset=(\d+)")
_COMMENT = re.compile(r"^   AdminComment=(.*)$", re.MULTILINE)
_UNKNOWN = "Invalid job id"
"""Slurm's error for a job that it has forgotten."""
_MOST_LOOKS = 4
"""The most tasks that are looked at: only a user's text makes more than one line look like a job's first one."""
_BRACKET = re.compile(r"([^\[\]]*)(?:\[([0-9,-]+)\])?")


class HeldGres(NamedTuple):
    """The GPUs that Slurm gave a job on one node, as positions."""

    gpus: frozenset[int] = frozenset()
    """The whole GPUs."""
    shards: Mapping[int, int] = MappingProxyType({})
    """The percentage of each shared GPU."""
    seats: frozenset[int] = frozenset()
    runs: bool = True
    """False if the job is about to end: Slurm may then have forgotten what it held."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Returns all of its GPUs, ascending; seats count only if there is nothing else."""
        return tuple(sorted(self.gpus | self.shards.keys() or self.seats))


class Scontrol:
    """Slurm's command scontrol, by its absolute path."""

    def __init__(self, path: str = "", conf: str = "", seconds: float = _JOB_SECONDS) -> None:
        self._path = path
        self._seconds = seconds
        self._environment = {**children.CLEAN, "SLURM_CONF": conf} if conf else children.CLEAN

    def gpus(self, job: int, node: str) -> tuple[int, ...]:
        """Returns the positions of the GPUs that Slurm gave a job on a node, ascending."""
        return self.held(job, node).positions

    def held(self, job: int, node: str, *, alone: bool = False) -> HeldGres:
        """Returns the GPUs that Slurm gave a job on a node; `alone`: the job has no other node."""
        return held(self._show(self._seconds, job, "-d")[1], node, alone=alone)

    def is_there(self, job: int, node: str = "") -> bool:
        """Tells whether Slurm still has a job on this node (or on some node); True if it does not say."""
        try:
            _, text = self._show(self._seconds, job)
        except NodeSlurmError as problem:
            return _UNKNOWN not in str(problem)
        states, lists = _STATE.findall(text), _NODES.findall(text)
        if node and len(lists) == 1 and lists[0] != "(null)" and not _among(node, lists[0]):
            return False
        return len(states) != 1 or states[0] in _RUNS | {"COMPLETING"}

    def state(self, job: int) -> str:
        """Returns a job's state in Slurm; empty if its texts imitate one, or if it is no single job."""
        states: list[str] = _STATE.findall(self._show(self._seconds, job)[1])
        return states[0] if len(states) == 1 else ""

    def is_sent_away(self, job: int) -> bool:
        """Tells whether Slurm ends a guest because berthd sent it away, not because of its user or its time limit."""
        _, text = self._show(_CHANGE_SECONDS, job)
        states, comments = _STATE.findall(text), _COMMENT.findall(text)
        if len(states) != 1 or len(comments) != 1:
            # A job's name or comment imitates Slurm's output.
            return False
        berth = re.search(r"\[berth/1 ([^\]]*)\]", comments[0])
        back = berth is not None and any(word.startswith("parked=") for word in berth.group(1).split(" "))
        return back and states[0] in _ON_ITS_WAY_BACK

    def logs(self, job: int) -> tuple[str, ...]:
        """Returns the output files of a batch job. They are a user's text, and other lines may imitate these."""
        records = self._run(_CHANGE_SECONDS, "show", "job", str(job)).split("\n\n")
        record = next((one for one in records if one.startswith(f"JobId={job} ")), "")
        found = (re.findall(rf"^   {name}=(\S.*)$", record, re.MULTILINE) for name in ("StdOut", "StdErr"))
        return tuple(dict.fromkeys(paths[-1] for paths in found if paths))

    def drain(self, node: str, reason: str) -> None:
        """Takes a node out of service, with a reason for a human."""
        self._run(_CHANGE_SECONDS, "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def requeue(self, job: int, *, if_running: bool = False) -> None:
        """Requeues a job, also one that is just ending; with `if_running` only one that still runs."""
        name, _ = self._show(_CHANGE_SECONDS, job)
        self._run(_CHANGE_SECONDS, "requeue", *(["Incomplete"] if if_running else []), name)

    def hold(self, job: int) -> None:
        """Requeues a batch job that starts, and holds it; for a heterogeneous job, all parts together.

        A job that was cancelled meanwhile stays cancelled: without `Incomplete` Slurm would bring it back.
        """
        name, text = self._show(_CHANGE_SECONDS, job)
        part = _HET.match(_ids(text))
        self._run(_CHANGE_SECONDS, "requeuehold", "Incomplete", part.group(1) if part else name)

    def configuration(self) -> dict[str, str]:
        """Returns Slurm's own settings."""
        lines = self._run(_CHANGE_SECONDS, "show", "config").split("\n")
        found = (re.match(r"(\w+(?:\[\d+\])?)\s+=\s?(.*)", line) for line in lines)
        return {match.group(1): match.group(2).strip() for match in found if match}

    def _show(self, seconds: float, job: int, *words: str) -> tuple[str, str]:
        """Returns Slurm's name for this job alone, and Slurm's record of it.

        One task of each array bears the array's number. Under that number Slurm shows the other tasks too, and would
        requeue all of them: such a task is named `ARRAY_TASK`. The same holds for the first part of a heterogeneous
        job, `JOB+0`.
        """
        text = self._run(seconds, "show", "job", str(job), *words)
        part = _HET.match(_ids(text))
        if part and part.groups() == (str(job), "0"):
            return f"{job}+0", self._run(seconds, "show", "job", f"{job}+0", *words)
        found = [(int(number), int(array or 0), task) for number, array, task in _IDS.findall(text)]
        # The first of these lines is Slurm's own, and a later one may be a user's text; in an array all are one user's.
        number, array, task = found[0] if found else (0, 0, "")
        if job not in {number, array}:
            raise NodeSlurmError(f"scontrol shows nothing of job {job}")
        if array != job:
            return f"{array}_{task}" if task.isdecimal() else str(job), text
        own = dict.fromkeys(task for *ids, task in found if ids == [job, job] and task.isdecimal())
        for task in list(own)[:_MOST_LOOKS]:
            alone = self._run(seconds, "show", "job", f"{job}_{task}", *words)
            first = _IDS.search(alone)
            if first is not None and first.groups() == (str(job), str(job), task):
                return f"{job}_{task}", alone
        raise NodeSlurmError(f"{_UNKNOWN}: of array {job} Slurm has no task any more with its number")

    def _run(self, seconds: float, *words: str) -> str:
        path = self._path or next((place for place in _PLACES if os.access(place, os.X_OK)), "")
        if not path:
            raise NodeSlurmError("scontrol is in none of the usual places; set [node] scontrol in berth.conf")
        try:
            ended = children.run([path, *words], self._environment, seconds, capture=True)
        except (OSError, TookTooLong) as problem:
            raise NodeSlurmError(f"{path} {words[0]}: {problem}; is slurmctld up?") from None
        if ended.code:
            said = ended.output.strip().split("\n")[-1][:200] or f"exit status {ended.code}"
            raise NodeSlurmError(f"{path} {words[0]} failed: {said}")
        return ended.output


def held(text: str, node: str, *, alone: bool = False) -> HeldGres:
    """Reads `scontrol show job -d`.

    At a job's end Slurm has forgotten the GPUs of each node. The sum over all nodes is left, which says enough if the
    job is `alone` on this one.

    If JOB_GRES stands twice, or not where Slurm writes it, a job's name or comment imitates Slurm's output: then
    nothing in it is believed.
    """
    states = _STATE.findall(text)
    runs = bool(states) and states[0] in _RUNS
    lines = text.split("\n")
    marks = [number for number, line in enumerate(lines) if line.lstrip().startswith("JOB_GRES=")]
    if len(states) > 1:
        raise Imitated(_IMITATES)
    if not marks:
        return HeldGres(runs=runs)
    before = [number for number, line in enumerate(lines) if line.lstrip().startswith("Socks/Node=")]
    if len(marks) > 1 or [number + 1 for number in before] != marks:
        raise Imitated(_IMITATES)
    for line in lines[marks[0] + 1 :]:
        match = _PLACE.fullmatch(line)
        if match is None:
            break
        if _among(node, match.group(1)):
            found = read_gres(match.group(2))
            if alone and not found.positions:
                found = read_gres(lines[marks[0]].lstrip().removeprefix("JOB_GRES="))
            return found._replace(runs=runs)
    raise NodeSlurmError(f"scontrol shows no GPUs of the job on {node}")


def read_gres(gres: str) -> HeldGres:
    """Reads `gpu:g0:1(IDX:0),shard:g2:30(30/100)`; for shards without a type of ours it lists each GPU in turn."""
    found: dict[str, dict[int, int]] = {"gpu": {}, "shard": {}, "seat": {}}
    for name, kind, count, where in _GRES.findall(gres):
        if int(count) == 0:
            continue
        typed = _OUR_TYPE.fullmatch(kind)
        if typed:
            found[name][int(typed.group(1))] = found[name].get(int(typed.group(1)), 0) + int(count)
        elif name == "shard":
            parts = [part.partition("/")[0] for part in where.split(",")]
            found[name] |= {gpu: int(part) for gpu, part in enumerate(parts) if part.isdecimal() and int(part)}
        else:
            found[name] |= dict.fromkeys(_numbers(where.removeprefix("IDX:")), 1)
    return HeldGres(frozenset(found["gpu"]), found["shard"], frozenset(found["seat"]))


def _ids(text: str) -> str:
    """Returns the text before a job's name, which is the first of its user's texts."""
    return text.partition(" JobName=")[0]


def _numbers(text: str) -> set[int]:
    """Returns the numbers of `0-2,5`; nothing if it is something else."""
    if not re.fullmatch(r"\d{1,3}(?:-\d{1,3})?(?:,\d{1,3}(?:-\d{1,3})?)*", text):
        return set()
    bounds = [part.partition("-") for part in text.split(",")]
    return {number for first, _, last in bounds for number in range(int(first), int(last or first) + 1)}


def _among(node: str, folded: str) -> bool:
    """Tells whether a node is in a list such as `n[1-3,07],login`."""
    return any(_is_in(node, part) for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", folded))


def _is_in(node: str, part: str) -> bool:
    """Tells whether a node is in one part of a list; each bracket becomes one number in the pattern."""
    pieces = [(match.group(1), match.group(2)) for match in _BRACKET.finditer(part)]
    pattern = "".join(re.escape(text) + (r"(\d+)" if numbers else "") for text, numbers in pieces)
    match = re.fullmatch(pattern, node)
    ranges = [numbers for _, numbers in pieces if numbers]
    return match is not None and all(map(_in_range, match.groups(), ranges))


def _in_range(digits: str, ranges: str) -> bool:
    bounds: Sequence[tuple[str, str, str]] = [part.partition("-") for part in ranges.split(",")]
    return any(
        len(digits) >= len(first) and int(first) <= int(digits) <= int(last or first) for first, _, last in bounds
    )
