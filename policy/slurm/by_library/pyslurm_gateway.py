# SPDX-License-Identifier: Apache-2.0
"""The gateway by pyslurm, Slurm's own library in this process, if a pyslurm for the running release is installed.

It only reads nodes and jobs, within a few milliseconds; Slurm's commands read the rest, and write. pyslurm 25.11 cannot

* read requests by job, socket or task, nor the GRES in use on a node. squeue is asked for the former, once for each
job without a request by node; the latter is the sum over jobs;
* load only changes: every reading is complete, and equal facts stay the same objects.
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from policy.formats.errors import SlurmError, UnreadableError
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.slurm import changes, fields
from policy.slurm.by_command import text
from policy.slurm.by_command.command import CommandGateway, Runner, run_command
from policy.slurm.by_library import pyslurm_facts as facts
from policy.slurm.unreadable import RECORD_FAULTS, why_unreadable
from policy.slurm.waits import WAITS

_PROBE_SECONDS = 30
_MOST_LISTED = 1_000
"""The most jobs that one call of squeue names; for more, it lists all."""

_REQUESTS = ("JobID", "tres-per-node", "tres-per-job", "tres-per-socket", "tres-per-task")
"""The fields for squeue -O."""

_NOTHING = fields.UsedGres(0, 0)
_NO_GRES = fields.Gres(0, 0, 0, 0)


def fits(run: Runner = run_command) -> str:
    """Returns why pyslurm cannot be used here, in one sentence; empty if it can."""
    try:
        installed = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return f"pyslurm is not installed in {sys.prefix}"
    try:
        running = CommandGateway(run).version()
    except SlurmError as problem:
        return str(problem)
    if _release(installed) != _release(running):
        return f"pyslurm {installed} fits another Slurm than the {running} here; install pyslurm {_release(running)}"
    return _import_problem(installed)


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _import_problem(installed: str) -> str:
    """Imports pyslurm in another process, as libslurm ends a process without configuration; returns the problem."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "import pyslurm"],
            check=False,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"pyslurm {installed} could not be loaded within {_PROBE_SECONDS} s; does Slurm find its configuration?"
    if not done.returncode:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    reason = said[-1] if said else f"it ended with {done.returncode}"
    return f"pyslurm {installed} cannot be loaded: {reason}"


def _load() -> Any:
    # pyslurm lets every library that is loaded later share its symbols; only Slurm's own plugins need that.
    flags = sys.getdlopenflags()
    try:
        return importlib.import_module("pyslurm")
    finally:
        sys.setdlopenflags(flags)


class PyslurmGateway(CommandGateway):
    """Reads in this process and writes by Slurm's commands; unchanged facts stay the same objects."""

    def __init__(self, module: Any = None, run: Runner = run_command) -> None:
        super().__init__(run, "pyslurm")
        # All tasks of an array, not only those that fit on a screen.
        os.environ["SLURM_BITSTR_LEN"] = "0"
        self._slurm = module or _load()
        self._gres: dict[str, fields.Gres] = {}
        self._requests: dict[int, tuple[object, facts.Requests]] = {}
        """By job, the fields that change with its requests, and the requests."""

    def read(self, *, ended: bool) -> Reading:
        """Reads nodes first, then jobs, so that a job that starts in between is at least in the queue."""
        before, seldom = self._seldom, self._read_seldom()
        if self._seldom is not before:
            self._gres = {}
        at = time.time()
        with self._speaking():
            loaded = _all(self._slurm.Nodes)
            jobs, used = self._read_jobs(_all(self._slurm.Jobs))
            nodes = list(self._read_nodes(loaded, used))
        return self._reading(at, seldom, nodes, jobs, frozenset() if ended else changes.ENDED)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except self._slurm.PyslurmError as problem:
            raise SlurmError(f"Slurm cannot be read: {problem}") from None
        except ValueError as problem:
            advice = "set gateway in berth.conf to libslurm or command"
            raise UnreadableError(f"Slurm cannot be read, because pyslurm stumbled over {problem}; {advice}") from None

    def _read_jobs(self, loaded: Iterable[Any]) -> tuple[list[JobFacts], list[facts.HeldByNode]]:
        """Returns the readable jobs, and the GRES that all jobs hold on their nodes."""
        jobs = [facts.JobReader(job) for job in loaded]
        self._unreadable = {}
        found: list[JobFacts] = []
        used: list[facts.HeldByNode] = []
        requests = self._read_requests(jobs)
        for job in jobs:
            # If this cannot be read, the free GPUs are unknown, and the reading fails.
            held = facts.held_by_node(job)
            try:
                found.append(facts.job_facts(job, requests[job.id], held))
            except RECORD_FAULTS as fault:
                self._unreadable[job.id] = why_unreadable(fault)
            used.append(held)
        return found, used

    def _read_requests(self, jobs: Iterable[facts.JobReader]) -> Mapping[int, facts.Requests]:
        """Returns jobs' requests; squeue is asked about a job without GPUs by node, as it may ask in another way."""
        before, self._requests = self._requests, {}
        unknown: list[int] = []
        for job in jobs:
            state, own = facts.asked_at(job), facts.requests_in(job)
            if job.id in before and before[job.id][0] == state:
                own = before[job.id][1]
            elif not fields.wants_gpus(own):
                unknown.append(job.id)
            self._requests[job.id] = state, own
        for job_id, own in self._ask_requests(unknown) if unknown else ():
            if job_id in self._requests:
                self._requests[job_id] = self._requests[job_id][0], own
        return {job_id: own for job_id, (_, own) in self._requests.items()}

    def _ask_requests(self, jobs: list[int]) -> list[tuple[int, facts.Requests]]:
        listed = [f"--jobs={','.join(map(str, jobs))}"] if len(jobs) <= _MOST_LISTED else []
        mark = text.new_mark()
        try:
            answer = self._run("squeue", "-h", "-a", "-t", "all", *listed, "-O", text.squeue_format(_REQUESTS, mark))
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            return []  # it was purged a moment ago
        lines = text.squeue_records(answer, mark, len(_REQUESTS))
        return [(int(job_id), facts.Requests(*map(_value, texts))) for job_id, *texts in lines]

    def _read_nodes(self, nodes: Iterable[Any], held: Iterable[facts.HeldByNode]) -> Iterator[NodeFacts]:
        used = facts.used_by_node(held)
        if any(node.name not in self._gres for node in nodes):
            self._gres = dict.fromkeys((node.name for node in nodes), _NO_GRES) | self._read_gres(nodes)
        for node in nodes:
            yield facts.node_facts(node, self._gres[node.name], used.get(node.name, _NOTHING))

    def _read_gres(self, nodes: Iterable[Any]) -> dict[str, fields.Gres]:
        try:
            return {node.name: facts.node_gres(node) for node in nodes}
        except ValueError:
            # pyslurm reads counts such as 100G, of a site's own GRES, as numbers.
            found = text.nodes(self._run("scontrol", "show", "node", "-a", "-o", "-d"))
            return {one.name: fields.Gres(one.gpus, one.loose, one.seats, one.shards, one.models) for one in found}


def _all(kind: Any) -> Iterable[Any]:
    WAITS.begin()
    found: Mapping[Any, Any] = kind.load()
    return list(found.values())


def _value(word: str) -> str:
    return "" if word in {"N/A", "(null)"} else word
