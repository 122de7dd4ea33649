"""The gateway through pyslurm: Slurm's own library in this process, where a pyslurm of the running release is there.

pyslurm reads and writes most of what Berth needs, within a few milliseconds. pyslurm 25.11 cannot

* read requests by job, socket or task, nor what is in use of a node's GRES. The former are asked of squeue, once for
  each job without a request by node; the latter is added up from what the jobs hold;
* clear a field, as giving a job back does, nor write seats by job, nor name a task of an array: scontrol does;
* load only what changed: every reading is a whole one, and of what is the same as before the old object is kept.
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeVar

from policy.formats.errors import SlurmError, UnreadableError
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import ID
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, PartitionFacts, Reading, Reservation
from policy.slurm import changes, fields
from policy.slurm.by_command import text
from policy.slurm.by_command.command import CommandGateway, Runner, run_command
from policy.slurm.by_library import pyslurm_facts as facts
from policy.slurm.interface import Pin
from policy.slurm.unreadable import RECORD_FAULTS, why_unreadable
from policy.slurm.waits import WAITS

_RARELY = 15.0
"""Seconds between readings of what seldom changes: configuration, who is in control, the nodes' GRES."""

_PROBE_SECONDS = 30
_MOST_LISTED = 1_000
"""Jobs named to squeue in one call; where more are to be asked for, it lists all."""

_REQUESTS = ("JobID", "tres-per-node", "tres-per-job", "tres-per-socket", "tres-per-task")
"""Fields for squeue -O."""

_NOTHING = fields.UsedGres(0, 0)
_NO_GRES = fields.Gres(0, 0, 0, 0)
T = TypeVar("T", NodeFacts, PartitionFacts, Reservation)


def fits(run: Runner = run_command) -> str:
    """Returns why pyslurm cannot be used here, in one sentence; empty where it can."""
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
    """Import it in another process first: libslurm ends the process that finds no configuration."""
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
    # pyslurm makes every library that is loaded after it share its symbols; only Slurm's own plugins need that.
    flags = sys.getdlopenflags()
    try:
        return importlib.import_module("pyslurm")
    finally:
        sys.setdlopenflags(flags)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job of the last reading."""

    row: facts.JobRow
    requests: facts.Requests
    held: Mapping[str, fields.UsedGres]
    facts: JobFacts


@dataclass(frozen=True, slots=True)
class _Seldom:
    """The things that are read now and then."""

    at: float
    config: Mapping[str, str]
    in_control: bool


class PyslurmGateway:
    """Reads and pins in this process; unchanged facts stay the same objects."""

    name = "pyslurm"

    def __init__(self, module: Any = None, run: Runner = run_command) -> None:
        # All tasks of an array, not only those that fit on a screen.
        os.environ["SLURM_BITSTR_LEN"] = "0"
        self._slurm = module or _load()
        self._run = run
        self._command = CommandGateway(run)
        self._seldom: _Seldom | None = None
        self._jobs: dict[int, _Job] = {}
        self._gres: dict[str, fields.Gres] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._unreadable: dict[int, str] = {}
        self._holds_unread: list[Mapping[str, fields.UsedGres]] = []
        self._partitions: dict[str, PartitionFacts] = {}
        self._reservations: dict[str, Reservation] = {}

    def version(self) -> str:
        """Slurm's version, as the controller has it."""
        with self._speaking("Slurm's configuration cannot be read"):
            return str(self._slurm.slurmctld.Config.load().version)

    def in_control(self) -> bool:
        """Tells whether the first controller that answers, which is the one that decides, is on this host."""
        return self._command.in_control()

    def config(self) -> Mapping[str, str]:
        """Slurm's configuration, in the words of slurm.conf, which pyslurm has replaced by its own."""
        return self._command.config()

    def read(self, *, ended: bool) -> Reading:
        """One look: nodes first, so that a job that starts in between is seen in the queue at least."""
        seldom = self._read_seldom()
        at = time.time()
        with self._speaking("Slurm cannot be read"):
            self._take_all()
        return Reading(
            at=at,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(job.facts for job in self._jobs.values() if ended or not job.row.over),
            partitions=tuple(self._partitions.values()),
            reservations=tuple(self._reservations.values()),
            seen=frozenset(job.facts.known[ID] for job in self._jobs.values() if ID in job.facts.known),
            refused=fields.refused(job.facts for job in self._jobs.values()),
            in_control=seldom.in_control,
            # Jobs of a federation have a cluster of origin.
            federated=any(job.row.federation_origin for job in self._jobs.values()),
            unreadable=dict(self._unreadable),
            **text.of_config(seldom.config),
        )

    def job(self, job_id: int) -> JobText:
        """One job's record, through JSON: pyslurm cannot read all of its requests."""
        return self._command.job(job_id)

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool = False) -> None:
        """Write a place, in one update; in a hurry based on the texts of the last reading."""
        if isinstance(job_id, str):
            # pyslurm knows jobs by number only, and a task that has not split off has none.
            self._command.pin(job_id, pin)
            return
        changed = changes.pin(self._known_text(job_id) if hurry else self.job(job_id), pin)
        # What pyslurm cannot say.
        if not {"tres_per_job", "tres_per_task", "begin", "requeue", "licenses", "node_count"}.isdisjoint(
            changed
        ) or "" in (changed["req_nodes"], changed.get("exc_nodes")):
            self._command.pin(job_id, pin)
            return
        self._modify(
            job_id,
            required_nodes=changed["req_nodes"],
            **({"excluded_nodes": changed["exc_nodes"]} if "exc_nodes" in changed else {}),
            # pyslurm puts its own prefix to each part.
            gres_per_node=changed["tres_per_node"].replace("gres/", ""),
            admin_comment=_bytes(changed["admin_comment"]),
            extra=_bytes(changed["extra"]),
        )

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        """Give a waiting job back to Slurm: it clears fields, which pyslurm cannot."""
        return self._command.release(job_id, reason, for_now=for_now)

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        """Another plan. pyslurm cannot let Slurm requeue a job."""
        if requeue:
            self._command.annotate(job_id, plan, requeue=True)
            return
        changed = changes.annotate(self.job(job_id), plan)
        self._modify(job_id, admin_comment=_bytes(changed["admin_comment"]))

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Another plan, and a begin time, which pyslurm cannot set."""
        self._command.delay(job_id, plan, seconds)

    def requeue(self, job_id: int | str) -> None:
        """Put a job that runs, or has failed, back into the queue."""
        if isinstance(job_id, str):
            # pyslurm knows jobs by number only.
            self._command.requeue(job_id)
            return
        with self._speaking(f"job {job_id} could not be requeued"):
            self._slurm.Job(job_id).requeue()

    def evict(self, job_id: int) -> bool:
        """Put a job that runs back into the queue; False where it has ended, or is about to."""
        return self._command.evict(job_id)

    def cancel(self, job_id: int) -> None:
        """End a job for good."""
        self._command.cancel(job_id)

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Send a signal to the steps of a running job, or to its script's shell alone."""
        self._command.warn(job_id, signal, batch=batch)

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        """Take a waiting guest off its node: it clears fields, which pyslurm cannot."""
        self._command.park(job_id, plan, seconds)

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        """Waiting jobs with typed GPUs and required nodes, as our pins have, and those that may come back."""
        return changes.pinned(self.read(ended=False).jobs, called)

    def close(self) -> None:
        """Nothing to let go of: libslurm keeps no connection, and it cannot be unloaded."""

    def _modify(self, job_id: int, **new: str | bytes) -> None:
        try:
            with self._speaking(f"job {job_id} could not be changed"):
                self._slurm.Job(job_id).modify(self._slurm.JobSubmitDescription(**new))
        except SlurmError as problem:
            if not changes.was_written(str(problem)):
                raise

    def _known_text(self, job_id: int) -> JobText:
        known = self._jobs.get(job_id)
        return facts.job_text(known.row, known.requests) if known else self.job(job_id)

    @contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        WAITS.begin()
        try:
            yield
        except self._slurm.PyslurmError as problem:
            raise SlurmError(f"{what}: {problem}") from None
        except ValueError as problem:
            advice = "set gateway in berth.conf to libslurm or command"
            raise UnreadableError(f"{what}, because pyslurm stumbled over {problem}; {advice}") from None

    def _take_all(self) -> None:
        nodes = list(_all(self._slurm.Nodes))
        partitions = map(facts.partition_facts, _all(self._slurm.Partitions))
        reservations = map(facts.reservation_facts, _all(self._slurm.Reservations))
        self._take_jobs(_all(self._slurm.Jobs))
        self._take_nodes(nodes)
        self._partitions = _kept(partitions, self._partitions)
        self._reservations = _kept((one for one in reservations if one.nodes), self._reservations)

    def _read_seldom(self) -> _Seldom:
        now = time.monotonic()
        if self._seldom is None or now - self._seldom.at > _RARELY:
            self._seldom = _Seldom(now, self.config(), self.in_control())
            self._gres = {}
        return self._seldom

    def _take_jobs(self, jobs: Iterable[Any]) -> None:
        known = self._jobs
        self._unreadable, self._holds_unread = {}, []
        found: list[tuple[Any, facts.JobRow]] = []
        for job in jobs:
            try:
                found.append((job, facts.job_row(job)))
            except RECORD_FAULTS as fault:
                self._leave_out(job, fault)
        new = {row.id for _, row in found if row.id not in known or known[row.id].row != row}
        requests = self._read_requests([row for _, row in found if row.id in new])
        self._jobs = {}
        for job, row in found:
            try:
                is_new = row.id in new
                self._jobs[row.id] = _job(job, row, requests[row.id], known.get(row.id)) if is_new else known[row.id]
            except RECORD_FAULTS as fault:
                self._leave_out(job, fault)

    def _leave_out(self, job: Any, fault: Exception) -> None:
        """Leave out a job whose record cannot be read; the GPUs that it holds are in use all the same."""
        self._unreadable[job.id] = why_unreadable(fault)
        # Where these cannot be read either, nobody knows which GPUs are free, and the reading fails.
        self._holds_unread.append(facts.held_by_node(job))

    def _read_requests(self, rows: Sequence[facts.JobRow]) -> Mapping[int, facts.Requests]:
        """The jobs' requests. Who asks for no GPUs by node wants none, or was left as the user wrote it."""
        requests = {row.id: facts.requests_in(row) for row in rows}
        unknown: list[int] = []
        for row in rows:
            before = self._jobs.get(row.id)
            if before and before.row.asked_at == row.asked_at:
                requests[row.id] = before.requests
            elif not fields.wants_gpus(requests[row.id]):
                unknown.append(row.id)
        if unknown:
            requests |= self._ask_requests(unknown)
        return requests

    def _ask_requests(self, jobs: Sequence[int]) -> Mapping[int, facts.Requests]:
        listed = [f"--jobs={','.join(map(str, jobs))}"] if len(jobs) <= _MOST_LISTED else []
        mark = text.new_mark()
        asked = text.squeue_format(_REQUESTS, mark)
        try:
            answer = self._run("squeue", "-h", "-a", "-t", "all", *listed, "-O", asked)
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            return {}  # it was purged a moment ago
        wanted = set(jobs)
        lines = text.squeue_records(answer.decode("utf-8", "surrogateescape"), mark, len(_REQUESTS))
        found = {int(job_id): facts.Requests(*map(_value, texts)) for job_id, *texts in lines}
        return {job_id: requests for job_id, requests in found.items() if job_id in wanted}

    def _take_nodes(self, nodes: Sequence[Any]) -> None:
        used = facts.used_by_node([*(job.held for job in self._jobs.values() if job.held), *self._holds_unread])
        rows = [facts.node_row(node) for node in nodes]
        if any(row.name not in self._gres for row in rows):
            self._gres = {row.name: _NO_GRES for row in rows} | self._read_gres(nodes)
        found = (facts.node_facts(row, self._gres[row.name], used.get(row.name, _NOTHING)) for row in rows)
        self._nodes = _kept(found, self._nodes)

    def _read_gres(self, nodes: Iterable[Any]) -> dict[str, fields.Gres]:
        try:
            return {node.name: facts.node_gres(node) for node in nodes}
        except ValueError:
            # pyslurm takes counts such as 100G, of a site's own GRES, for numbers.
            found = text.nodes(
                self._run("scontrol", "show", "node", "-a", "-o", "-d").decode("utf-8", "surrogateescape")
            )
            return {
                node.name: fields.Gres(node.gpus, node.loose, node.seats, node.shards, node.models) for node in found
            }


def _all(kind: Any) -> Iterable[Any]:
    WAITS.begin()
    found: Mapping[Any, Any] = kind.load()
    return found.values()


def _job(job: Any, row: facts.JobRow, requests: facts.Requests, before: _Job | None) -> _Job:
    held = facts.held_by_node(job) if row.allocated_nodes and not row.over else {}
    now = facts.job_facts(job, row, requests, held)
    return _Job(row, requests, held, before.facts if before is not None and before.facts == now else now)


def _kept(found: Iterable[T], known: Mapping[str, T]) -> dict[str, T]:
    """The facts by name; where one says the same as in the last reading, the same object as there."""
    kept: dict[str, T] = {}
    for fact in found:
        old = known.get(fact.name)
        kept[fact.name] = old if old is not None and old == fact else fact
    return kept


def _value(word: str) -> str:
    return "" if word in {"N/A", "(null)"} else word


def _bytes(value: str) -> bytes:
    # As text pyslurm takes valid UTF-8 only, and foreign text may hold any byte.
    return value.encode("utf-8", "surrogateescape")
