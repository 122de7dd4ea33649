# SPDX-License-Identifier: Apache-2.0
"""The gateway by libslurm: a small program that remembers what it sent and sends only changes."""

import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

from policy.formats import hostlist, segment
from policy.formats.errors import SlurmError, UnreadableError
from policy.formats.job_plan import JobPlan, readable
from policy.formats.plan_fields import ID
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, PartitionFacts, Reading, Reservation
from policy.formats.slurm_syntax import excluded_nodes
from policy.formats.wire import escape, unescape
from policy.slurm import changes, fields
from policy.slurm.by_command import text
from policy.slurm.by_command.command import OVER
from policy.slurm.by_library.between_looks import NOTHING, Held, held, nodes_after, nodes_late
from policy.slurm.by_library.program import (
    Gone,
    JobRecord,
    NodeRecord,
    NodesLook,
    PartitionRecord,
    Ping,
    Program,
    Record,
    ReservationRecord,
    SlurmConfig,
    UnreadableJob,
)
from policy.slurm.interface import Pin
from policy.slurm.unreadable import RECORD_FAULTS, why_unreadable

PROGRAM = Path("/usr/libexec/berth/berth-slurm")

Fact = JobFacts | NodeFacts | PartitionFacts | Reservation
Facts = defaultdict[str, dict[int, Fact]]
"""Facts by kind of record and number."""
F = TypeVar("F", JobFacts, NodeFacts, PartitionFacts, Reservation)

_KINDS: Mapping[type[Fact], str] = {
    JobFacts: "job",
    NodeFacts: "node",
    PartitionFacts: "partition",
    Reservation: "reservation",
}

_RARELY = 15.0
"""Seconds between two reads of seldom-changing data: configuration and the host in control."""


class LibslurmGateway:
    """Reads by berth-slurm, which sends a record only if it changed; unchanged facts stay the same objects."""

    name = "libslurm"

    def __init__(self, path: Path = PROGRAM) -> None:
        self._program = Program(path)
        self._starts = 0
        self._seldom: tuple[float, Mapping[str, str], Ping] | None = None
        # True if this object has all that the program has sent.
        self._in_step = False
        self._facts: Facts = defaultdict(dict)
        self._records: dict[int, JobRecord] = {}
        """Records of jobs that are not over: other jobs are never changed, and Slurm may keep very many."""
        # By array, the record of its tasks that have not split off.
        self._arrays: dict[int, int] = {}
        self._unreadable: dict[int, str] = {}
        self._held: dict[int, Held] = {}
        # The parts that each job changed since the last reading held, and those that it holds now.
        self._moved: list[tuple[Held, Held]] = []
        # The nodes whose facts are computed, as they were at the last look.
        self._looked_at: dict[int, NodeFacts] = {}
        # Tuples that are made from the facts, and made anew after a change.
        self._shown: dict[type, tuple[Any, ...]] = {}
        self._live: tuple[JobFacts, ...] = ()
        self._nonces: dict[int, str] = {}
        self._seen: frozenset[str] = frozenset()
        self._refused: frozenset[str] = frozenset()

    def version(self) -> str:
        """Returns Slurm's version."""
        return self.config().get("SLURM_VERSION", "")

    def in_control(self) -> bool:
        """Tells whether the first controller that answers, which is the one in charge, is on this host."""
        try:
            return _is_here(self._ping().controller)
        except SlurmError:
            return False

    def config(self) -> Mapping[str, str]:
        """Returns the controller's configuration."""
        for record in self._program.ask("config"):
            if isinstance(record, SlurmConfig):
                return text.config(unescape(record.text))
        raise SlurmError("berth-slurm gave no configuration; is it of this Berth's release?")

    def read(self, *, ended: bool) -> Reading:
        """Reads the changes since the last reading; the rest stays the same."""
        config, ping = self._read_seldom()
        at = time.time()
        self._take_changes()
        return Reading(
            at=at,
            nodes=self._all(NodeFacts),
            jobs=self._all(JobFacts) if ended else self._live,
            partitions=self._all(PartitionFacts),
            reservations=tuple(one for one in self._all(Reservation) if one.nodes),
            seen=self._seen,
            refused=self._refused,
            in_control=_is_here(ping.controller),
            federated=bool(ping.federation),
            nodes_late=nodes_late(len(self._facts["node"])),
            unreadable=dict(self._unreadable),
            **text.of_config(config),
        )

    def job(self, job_id: int) -> JobText:
        """Asks for one job's record, and returns it."""
        try:
            found = self._program.ask(f"job {job_id}")
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            found = []
        for record in found:
            if isinstance(record, JobRecord):
                return _job_text(record)
            if isinstance(record, UnreadableJob):
                raise UnreadableError(f"the record of job {job_id} cannot be read: {record.why}")
        raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool = False) -> None:
        """Writes a place; in a hurry based on the texts of the last reading."""
        job = self._known_text(job_id) if hurry else self._text(job_id)
        self._place(job_id, job, changes.pin(job, pin))

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        """Gives a waiting job back to Slurm, with a request equal to the user's."""
        return changes.give_back(
            lambda: self._text(job_id),
            lambda job, values: self._place(job_id, job, values),
            reason,
            for_now=for_now,
        )

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        """Writes another plan."""
        self._update(job_id, changes.annotate(self._text(job_id), plan, requeue=requeue))

    def requeue(self, job_id: int | str) -> None:
        """Requeues a job that runs or has failed."""
        self._program.ask(f"requeue {self._name(job_id)}")

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Writes another plan and a begin time."""
        self._update(job_id, changes.delay(self._text(job_id), plan, seconds))

    def evict(self, job_id: int) -> bool:
        """Requeues a running job; returns False if it has ended, or is about to."""
        try:
            self._program.ask(f"evict {self._name(job_id)}")
        except SlurmError as problem:
            if OVER.search(str(problem)):
                return False
            raise
        return changes.was_put_back(self.job(job_id))

    def cancel(self, job_id: int) -> None:
        """Cancels a job."""
        self._program.ask(f"cancel {self._name(job_id)}")

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Sends a signal to the steps of a running job, or only to its script's shell."""
        number = int(signal) if signal.isdigit() else int(Signals["SIG" + signal])
        self._program.ask(f"signal {self._name(job_id)} {number}{' batch' if batch else ''}")

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        """Takes a waiting guest off its node."""
        job = self._text(job_id)
        self._place(job_id, job, changes.park(job, plan, seconds))

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        """Returns waiting jobs with typed GPUs and required nodes, as pins have them, and jobs that may be requeued."""
        return changes.pinned(self.read(ended=False).jobs, called)

    def close(self) -> None:
        """Ends the program."""
        self._program.close()

    def _place(self, job_id: int | str, job: JobText, values: Mapping[str, str]) -> None:
        """Writes a change of a place; if Slurm refuses it half way, undoes the part that was written."""
        try:
            self._update(job_id, values)
        except SlurmError as problem:
            if changes.wrote_nodes(values, str(problem)):

                def put_right(*, without_list: bool = False) -> None:
                    self._update(job_id, changes.taken_back(job, self._text(job_id), values, without_list=without_list))

                changes.put_right(put_right, partial(put_right, without_list=True))
            raise

    def _update(self, job_id: int | str, values: Mapping[str, str]) -> None:
        """Changes one record; the tasks of an array that have not split off by the array's number.

        With a list of tasks Slurm would also change a task that has just started. It refuses such a change before it
        writes anything, but only for the first record: for the next ones it has lost the requested GPUs.
        """
        if isinstance(job_id, str) and "[" in job_id:
            job_id = job_id.partition("_")[0]
        words = " ".join(f"{key}={escape(value)}" for key, value in values.items())
        try:
            self._program.ask(f"update {job_id} {words}")
        except SlurmError as problem:
            if changes.was_written(str(problem)):
                return
            raise type(problem)(f"job {job_id} could not be changed: {problem}") from None

    def _text(self, job_id: int | str) -> JobText:
        """Returns the texts that a change is based on; for a task that has not split off, those of its array."""
        return self.job(job_id if isinstance(job_id, int) else self._record_of(job_id).id)

    def _known_text(self, job_id: int | str) -> JobText:
        """Returns the same texts as the last reading has them."""
        record = self._records.get(job_id) if isinstance(job_id, int) else self._record_of(job_id)
        return _job_text(record) if record is not None else self.job(int(job_id))

    def _name(self, job_id: int | str) -> int | str:
        """Returns the name of one record alone: one task of each array has the array's own number."""
        record = self._records.get(job_id) if isinstance(job_id, int) else None
        alone = record is not None and record.array == job_id and record.task is not None
        return f"{job_id}_{record.task}" if record is not None and alone else job_id

    def _record_of(self, name: str) -> JobRecord:
        array, _, task = name.partition("_")
        record_id = self._arrays.get(int(array))
        if record_id is not None:
            return self._records[record_id]
        for record in self._records.values():
            if (record.array, str(record.task)) == (int(array), task):
                return record
        raise SlurmError(f"task {name} is not known to Slurm (any more); sacct may still know it")

    def _ping(self) -> Ping:
        for record in self._program.ask("ping"):
            if isinstance(record, Ping):
                return record
        raise SlurmError("berth-slurm did not say which controller answers; is it of this Berth's release?")

    def _read_seldom(self) -> tuple[Mapping[str, str], Ping]:
        now = time.monotonic()
        if self._seldom is None or now - self._seldom[0] > _RARELY:
            self._seldom = (now, self.config(), self._ping())
        return self._seldom[1], self._seldom[2]

    def _take_changes(self) -> None:
        """Asks for the changes; after a failure, or with a new program, for everything."""
        in_step, self._in_step = self._in_step, False
        found = self._program.ask("read" if in_step else "read all")
        known = self._facts
        if not in_step or self._program.starts != self._starts:
            self._facts, self._records, self._arrays, self._unreadable = defaultdict(dict), {}, {}, {}
            self._nonces, self._held, self._looked_at = {}, {}, {}
        self._moved.clear()
        for record in found:
            self._take(record, known)
        if found:
            self._shown.clear()
            jobs, records = self._all(JobFacts), self._records
            self._live = tuple(job for job in jobs if job.id in records)
            self._seen = frozenset(self._nonces.values())
            self._refused = fields.refused(jobs)
        self._starts, self._in_step = self._program.starts, True

    def _take(self, record: Record, known: Facts) -> None:
        match record:
            case Gone(kind, number):
                self._facts[kind].pop(number, None)
                if kind == "job":
                    self._nonces.pop(number, None)
                    self._forget_record(number)
                    self._holds(number, NOTHING)
            case JobRecord():
                self._take_job(record, known)
            case UnreadableJob(number, why):
                self._forget_record(number)
                self._leave_out(number, why)
            case NodeRecord():
                self._keep("node", record.id, node_facts(record), known)
            case NodesLook(behind):
                self._between_looks(behind=bool(behind))
            case PartitionRecord():
                [partition] = text.partitions(unescape(record.text))
                self._keep("partition", record.id, partition, known)
            case ReservationRecord():
                nodes = hostlist.expand(unescape(record.nodes))
                found = Reservation(record.start, record.end or 1 << 62, nodes, unescape(record.name))
                for whole in text.reservations(unescape(record.text)):
                    found = replace(whole, start=found.start, end=found.end)
                self._keep("reservation", record.id, found, known)

    def _take_job(self, record: JobRecord, known: Facts) -> None:
        self._forget_record(record.id)
        try:
            facts = job_facts(record)
        except RECORD_FAULTS as fault:
            self._leave_out(record.id, why_unreadable(fault))
            return
        self._holds(record.id, held(record))
        if not record.over:
            self._records[record.id] = record
            if record.tasks:
                self._arrays[record.array] = record.id
        if ID in facts.known:
            self._nonces[record.id] = facts.known[ID]
        else:
            self._nonces.pop(record.id, None)
        self._keep("job", record.id, facts, known)

    def _keep(self, kind: str, number: int, fact: Fact, known: Facts) -> None:
        """Keeps the old object if it is equal: only fields that Berth does not read may have changed."""
        old = known[kind].get(number)
        self._facts[kind][number] = old if old is not None and old == fact else fact

    def _holds(self, job_id: int, holds: Held) -> None:
        before = self._held.pop(job_id, NOTHING)
        if holds:
            self._held[job_id] = holds
        if before or holds:
            self._moved.append((before, holds))

    def _between_looks(self, *, behind: bool) -> None:
        """Computes the resources in use on nodes if no look at them follows; before a look, restores the last one."""
        nodes = self._facts["node"]
        if not behind:
            nodes.update(self._looked_at)
            self._looked_at = {}
            return
        numbers = {fact.name: number for number, fact in nodes.items() if isinstance(fact, NodeFacts)}
        by_name = {fact.name: fact for fact in nodes.values() if isinstance(fact, NodeFacts)}
        for name, fact in nodes_after(self._moved, by_name).items():
            self._looked_at.setdefault(numbers[name], by_name[name])
            nodes[numbers[name]] = fact

    def _leave_out(self, job_id: int, why: str) -> None:
        self._facts["job"].pop(job_id, None)
        self._nonces.pop(job_id, None)
        self._unreadable[job_id] = why

    def _forget_record(self, job_id: int) -> None:
        self._unreadable.pop(job_id, None)
        record = self._records.pop(job_id, None)
        if record is not None and self._arrays.get(record.array) == job_id:
            del self._arrays[record.array]

    def _all(self, kind: type[F]) -> tuple[F, ...]:
        if kind not in self._shown:
            self._shown[kind] = tuple(self._facts[_KINDS[kind]].values())
        return self._shown[kind]


def job_facts(record: JobRecord) -> JobFacts:
    """Returns a job's facts from its record."""
    requests = (record.tres_per_node, record.tres_per_job, record.tres_per_socket, record.tres_per_task)
    # Tasks that ended before they split off do not matter.
    tasks, at_once = ("", None) if record.over else fields.tasks(unescape(record.tasks))
    state = fields.job_state(record.state)
    waits, wants_gpus = not record.nodes and state == "PENDING", fields.wants_gpus(requests)
    plan = readable(unescape(record.admin_comment))
    return JobFacts(
        id=record.id,
        # The record of tasks that have not split off stands for many jobs, none of them placed.
        state="ARRAY" if tasks else state,
        expedited=record.state == fields.EXPEDITING,
        partition=unescape(record.partition),
        priority=record.priority,
        submitted=record.submitted,
        start=record.start or None,
        end=record.end or None,
        limit=None if record.minutes is None else record.minutes * 60,
        cpus=record.cpus,
        nodes=hostlist.expand(record.nodes),
        required=excluded_nodes.required_by(record.required, plan),
        excluded=excluded_nodes.of_the_user(record.excluded, plan),
        closes=excluded_nodes.closes(record.required, record.excluded, plan),
        planned=hostlist.expand(record.planned) if waits and wants_gpus else (),
        features=unescape(record.features),
        reason=unescape(record.reason),
        # A job with a script is pinned by node, one without by job: srun would trip over the former.
        gpus=fields.pinned(record.tres_per_node) or fields.pinned(record.tres_per_job),
        share=fields.share(record.tres_per_node),
        guest=fields.guest(record.tres_per_node),
        plan=plan,
        user=record.user,
        count=record.count,
        mem=fields.mem(record.tres, record.count),
        holds=tuple(map(fields.held, record.gres)) if record.nodes else (),
        wants_gpus=wants_gpus,
        models=fields.models(requests),
        array=record.array,
        task=record.task,
        tasks=tasks,
        at_once=at_once or record.at_once or None,
        het=record.het,
        reservation=unescape(record.reservation),
        licenses=unescape(record.licenses),
        account=unescape(record.account),
        name=unescape(record.name),
        begin=record.eligible if waits and record.eligible > record.submitted else None,
        own_extra=segment.remove(unescape(record.extra)),
    )


def node_facts(record: NodeRecord) -> NodeFacts:
    """Returns a node's facts from its record."""
    has, used = fields.gres(record.gres), fields.gres_used(record.gres_used)
    return fields.node_facts(
        record.state,
        has,
        used,
        name=record.name,
        cpus=record.cpus,
        cpus_used=record.cpus_used,
        mem=record.mem,
        mem_used=record.mem_used,
        threads=record.threads,
        weight=record.weight,
        cpus_kept=record.cores_kept * record.threads,
        features=fields.names(unescape(record.features)),
        partitions=fields.names(unescape(record.partitions)),
    )


def _job_text(record: JobRecord) -> JobText:
    return JobText(
        id=record.id,
        # A requeued job can be changed while it still ends on its nodes.
        state=fields.job_state(record.base or record.state if record.state == "COMPLETING" else record.state),
        user_id=record.user,
        admin_comment=unescape(record.admin_comment),
        extra=unescape(record.extra),
        required=unescape(record.required),
        tres_per_node=unescape(record.tres_per_node),
        tres_per_job=unescape(record.tres_per_job),
        excluded=unescape(record.excluded),
        licenses=unescape(record.licenses),
        tres_per_task=unescape(record.tres_per_task),
    )


def _is_here(controller: str) -> bool:
    here = socket.gethostname().partition(".")[0]
    return controller.partition(".")[0] in {here, "localhost"}
