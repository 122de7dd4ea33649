# SPDX-License-Identifier: Apache-2.0
"""The gateway that is always there: Slurm's own commands."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan, readable
from policy.formats.plan_fields import ID
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, Reading
from policy.formats.slurm_syntax import excluded_nodes
from policy.formats.slurm_syntax.array_tasks import waiting_tasks
from policy.formats.slurm_syntax.moments import local_time
from policy.slurm import changes, fields
from policy.slurm.by_command import records, text
from policy.slurm.command_failures import failed, not_started
from policy.slurm.interface import Pin
from policy.slurm.waits import WAITS

_SECONDS = 20
_MOST_RECORDS = 400
"""Job records asked for in one reading: each costs Slurm's JSON writer about a millisecond."""

_RARELY = 15.0
"""Seconds between readings of what seldom changes: configuration, the host in control, federation."""

_HOLDING = frozenset(text.HOLDING_STATES.split(","))
"""States in which a job holds what it has."""

_KEYS = {
    "req_nodes": "ReqNodeList",
    "exc_nodes": "ExcNodeList",
    "tres_per_node": "TresPerNode",
    "tres_per_job": "TresPerJob",
    "tres_per_task": "TresPerTask",
    "admin_comment": "AdminComment",
    "extra": "Extra",
    "licenses": "Licenses",
    "begin": "StartTime",
    "requeue": "Requeue",
    "node_count": "NumNodes",
    "min_cpus": "NumCPUs",
}
"""Names that scontrol has for the fields of a change."""

_TEXTS = {
    **{key: key for key in ("tres_per_node", "tres_per_job", "admin_comment", "extra", "licenses")},
    "exc_nodes": "excluded",
}
"""Those fields that are the base of later changes, and their names in a `JobText`."""

_TASKS_AT_ONCE = 20
"""Tasks of an array that are changed one by one in one update; the plan comes back to the others in its next pass."""

OVER = re.compile(r"already|not running|Invalid job id|not pending|finished|completing", re.IGNORECASE)
"""Slurm's texts for a job that has ended."""

Runner = Callable[..., bytes]
"""Runs one command line, word by word, and returns its output."""

T = TypeVar("T")


class CommandGateway:
    """Runs scontrol and squeue; nothing that a user wrote ever becomes part of a command but as one argument."""

    def __init__(self, run: Runner | None = None, name: str = "command") -> None:
        self.name = name
        self._bytes = run or run_command
        self._seldom: tuple[float, Mapping[str, str], bool, bool] | None = None
        self._facts: dict[Hashable, object] = {}
        self._queue: dict[int, text.QueueLine] = {}
        self._texts: dict[int, records.RecordText] = {}
        self._holds: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self._unreadable: dict[int, str] = {}

    def version(self) -> str:
        """Slurm's version."""
        return self._run("scontrol", "version").rpartition(" ")[2].strip()

    def in_control(self) -> bool:
        """Tells whether the first controller that answers, which is the one that decides, is on this host."""
        try:
            answer = self._run("scontrol", "ping")
        except SlurmError:
            return False
        up = re.findall(r"Slurmctld\([^)]*\) at (\S+) is UP", answer)
        here = socket.gethostname().partition(".")[0]
        return bool(up) and up[0].partition(".")[0] in {here, "localhost"}

    def config(self) -> Mapping[str, str]:
        """Slurm's configuration, as the controller has it."""
        return text.config(self._run("scontrol", "show", "config"))

    def read(self, *, ended: bool) -> Reading:
        """One look: nodes first, so that a job that starts in between is seen in the queue at least."""
        seldom, at = self._read_seldom(), time.time()
        nodes = text.nodes(self._run("scontrol", "show", "node", "-o", "-d"))
        self._queue = self._read_queue("all" if ended else f"{self._waiting_states()},{text.HOLDING_STATES}")
        return self._reading(at, seldom, nodes, self._completed())

    def _reading(
        self,
        at: float,
        seldom: tuple[Mapping[str, str], bool, bool],
        nodes: Iterable[NodeFacts],
        jobs: Iterable[JobFacts],
        left_out: frozenset[str] = frozenset(),
    ) -> Reading:
        """Completes a reading of nodes and jobs; jobs in the states `left_out` are known and not shown."""
        config, in_control, federated = seldom
        partitions = text.partitions(self._run("scontrol", "show", "partition", "-o", "-a"))
        reservations = text.reservations(self._run("scontrol", "show", "reservation", "-o"))
        known, self._facts = self._facts, {}
        kept = self._kept("job", jobs, known, lambda job: job.id)
        return Reading(
            at=at,
            nodes=self._kept("node", nodes, known, lambda node: node.name),
            jobs=tuple(job for job in kept if job.state not in left_out),
            partitions=self._kept("partition", partitions, known, lambda partition: partition.name),
            reservations=self._kept("reservation", reservations, known, lambda one: one.name),
            seen=frozenset(job.known[ID] for job in kept if ID in job.known),
            refused=fields.refused(kept),
            in_control=in_control,
            federated=federated,
            unreadable=self._unreadable,
            **text.of_config(config),
        )

    def job(self, job_id: int) -> JobText:
        """One job's record, through JSON."""
        return self._record(job_id).job

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool = False) -> None:
        """Write a place; in a hurry based on texts that are asked for only when they may have changed."""
        job = self._known_text(job_id) if hurry else self._text(job_id)
        self._update(job_id, job, changes.pin(job, pin))

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        """Give a waiting job back to Slurm with a request equal to the user's."""
        return changes.give_back(
            lambda: self._text(job_id),
            # No later pass comes back to the tasks that are left.
            lambda job, values: self._update(job_id, job, values, most_tasks=None),
            reason,
            for_now=for_now,
        )

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        """Another plan. Of an array, that of the tasks that have not split off."""
        job = self._text(job_id)
        self._update(job_id, job, changes.annotate(job, plan, requeue=requeue))

    def requeue(self, job_id: int | str) -> None:
        """Put a job that runs, or has failed, back into the queue."""
        self._run("scontrol", "requeue", job_id if isinstance(job_id, str) else self._name(job_id))

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Another plan, and a begin time."""
        job = self._text(job_id)
        self._update(job_id, job, changes.delay(job, plan, seconds))

    def evict(self, job_id: int) -> bool:
        """Put a job that runs back into the queue; False where it has ended, or is about to."""
        try:
            self._run("scontrol", "requeue", "Incomplete", self._name(job_id))
        except SlurmError as problem:
            if OVER.search(str(problem)):
                return False
            raise
        return changes.was_put_back(self.job(job_id))

    def cancel(self, job_id: int) -> None:
        """End a job for good."""
        self._run("scancel", "--ctld", self._name(job_id))

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Send a signal to the steps of a running job, or to its script's shell alone."""
        to = ["--batch"] if batch else []
        # By itself scancel tries for a minute and a half to signal a job that waits or ends.
        self._run("scancel", "--ctld", *to, "-s", signal, self._name(job_id))

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        """Take a waiting guest off its node."""
        job = self._text(job_id)
        self._update(job_id, job, changes.park(job, plan, seconds))

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        """Waiting jobs with typed GPUs and required nodes, as our pins have, and those that may come back."""
        states = f"{self._waiting_states()},COMPLETING"
        return changes.pinned((line.job for line in self._read_queue(states).values()), called)

    def close(self) -> None:
        """Nothing to let go of."""

    def _read_queue(self, states: str) -> dict[int, text.QueueLine]:
        mark = text.new_mark()
        self._unreadable = {}
        # Without -r squeue would show a task that waits with a place of its own as a part of its array's record.
        printed = self._run("squeue", "-h", "-a", "-r", "-t", states, "-O", text.queue_format(mark))
        lines = text.jobs(printed, mark, self._unreadable)
        arrays: Mapping[int, str] = {}
        if any(line.job.array and line.job.state == "PENDING" for line in lines):
            arrays = text.arrays(self._run("squeue", "-h", "-a", "-t", self._waiting_states(), "-O", text.ARRAY_FORMAT))
        return text.with_arrays(lines, arrays, self._unreadable)

    def _waiting_states(self) -> str:
        return text.waiting_states(self._read_seldom()[0].get("SLURM_VERSION", ""))

    def _kept(
        self, kind: str, facts: Iterable[T], known: Mapping[Hashable, object], key: Callable[[T], Hashable]
    ) -> tuple[T, ...]:
        """The facts; where one says the same as in the last reading, the same object as there."""
        kept: list[T] = []
        for fact in facts:
            place = (kind, key(fact))
            old = known.get(place)
            # Equal, so of the same type.
            self._facts[place] = same = old if old == fact else fact
            kept.append(same)
        return tuple(kept)

    def _completed(self) -> Iterable[JobFacts]:
        """The queue's jobs with what other lines, or other commands, say of them."""
        self._texts = {job_id: record for job_id, record in self._texts.items() if job_id in self._queue}
        self._read_holds()
        at_once = {line.job.array: line.job.at_once for line in self._queue.values() if line.job.tasks}
        for line in self._queue.values():
            job = line.job
            if job.id in self._holds:
                job = replace(job, holds=self._holds[job.id][1])
            if job.task is not None and at_once.get(job.array):
                job = replace(job, at_once=at_once[job.array])
            yield job

    def _read_holds(self) -> None:
        """The GPUs of jobs that run: of typed ones the request tells them, of others only their records."""
        old, self._holds = self._holds, {}
        unknown: list[JobFacts] = []
        for line in self._queue.values():
            job = line.job
            if not (job.wants_gpus and job.state in _HOLDING):
                continue
            typed = fields.typed_gpus(line.tres_per_node) or fields.typed_gpus(line.tres_per_job)
            if typed or job.gpus:
                self._holds[job.id] = (job.start, (typed,) * len(job.nodes))
            elif old.get(job.id, (None, ()))[0] == job.start:
                self._holds[job.id] = old[job.id]
            else:
                unknown.append(job)
        if not unknown:
            return
        listed = ",".join(str(job.id) for job in unknown[:_MOST_RECORDS])
        try:
            found = records.jobs(self._bytes("squeue", "-a", "-t", "all", "--json", f"--jobs={listed}"))
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            return  # it was purged a moment ago
        self._holds.update({job.id: (job.start, found[job.id].holds) for job in unknown if job.id in found})

    def _name(self, job_id: int) -> str:
        """The name of one record alone: a task's number may be that of its whole array."""
        return (self._texts.get(job_id) or self._record(job_id)).name

    def _record(self, job_id: int) -> records.RecordText:
        try:
            found = records.jobs(self._bytes("scontrol", "show", "job", str(job_id), "--json"))
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            found = {}
        if job_id not in found:
            raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")
        self._texts[job_id] = found[job_id]
        return found[job_id]

    def _text(self, job_id: int | str) -> JobText:
        """The texts that a change is based on; those of a task that has not split off are its array's."""
        return self._record(job_id if isinstance(job_id, int) else self._record_of(job_id)).job

    def _known_text(self, job_id: int | str) -> JobText:
        """The same, as the last reading has them."""
        number = job_id if isinstance(job_id, int) else self._record_of(job_id)
        line, record = self._queue.get(number), self._texts.get(number)
        if line is not None and record is not None and _key(record.job) == _key(line):
            return replace(record.job, state="PENDING" if line.job.state == "ARRAY" else line.job.state)
        return self._record(number).job

    def _record_of(self, task: str) -> int:
        array, _, number = task.partition("_")
        for line in self._queue.values():
            job = line.job
            if job.array == int(array) and (job.tasks or str(job.task) == number):
                return job.id
        return int(array)

    def _update(
        self, job_id: int | str, job: JobText, values: Mapping[str, str], most_tasks: int | None = _TASKS_AT_ONCE
    ) -> None:
        record = self._texts[job.id]
        # An array's number would mean all its tasks, those that run and those with a place of their own too.
        listed = record.tasks and ("req_nodes" in values or "." not in record.tasks)
        own = f"{record.name}_[{record.tasks}]" if listed else record.name
        name = job_id if isinstance(job_id, str) else own
        try:
            self._write(name, values, most_tasks)
        except SlurmError as problem:
            if changes.wrote_nodes(values, str(problem)):

                def put_right(*, without_list: bool = False) -> None:
                    back = changes.taken_back(job, self._text(job_id), values, without_list=without_list)
                    self._write(name, back, most_tasks)

                changes.put_right(put_right, partial(put_right, without_list=True))
            raise
        if isinstance(job_id, int):
            written = {_TEXTS[key]: value for key, value in values.items() if key in _TEXTS}
            self._texts[job_id] = replace(record, job=replace(job, **written))  # type: ignore[arg-type]

    def _write(self, name: int | str, values: Mapping[str, str], most_tasks: int | None) -> None:
        words = [f"{_KEYS[key]}={_AS_SCONTROL.get(key, str)(value)}" for key, value in values.items()]
        if "[" in str(name) and "req_nodes" in values:
            self._update_rest(str(name), words, most_tasks)
        else:
            self._run_update(str(name), words)

    def _run_update(self, name: str, words: Iterable[str]) -> None:
        try:
            self._run("scontrol", "update", f"JobId={name}", *words)
        except SlurmError as problem:
            if not changes.was_written(str(problem)):
                raise

    def _update_rest(self, name: str, words: Iterable[str], most: int | None) -> None:
        """Change the tasks of an array that have not split off, such as `11_[4,5]`.

        Where nodes change, scontrol takes no list. It takes the array's number as long as no task has a record of its
        own, and refuses it else; then it is one task after the other, each of which gets a record by that.
        """
        array, _, tasks = name.partition("_")
        try:
            self._run_update(array, words)
        except SlurmError as problem:
            if "not supported for job arrays" not in str(problem):
                raise
            listed = tasks.strip("[]")
            for task in fields.numbers(listed) if most is None else waiting_tasks(listed)[:most]:
                self._run_update(f"{array}_{task}", words)

    def _read_seldom(self) -> tuple[Mapping[str, str], bool, bool]:
        now = time.monotonic()
        if self._seldom is None or now - self._seldom[0] > _RARELY:
            federated = "Federation:" in self._run("scontrol", "show", "federation")
            self._seldom = (now, self.config(), self.in_control(), federated)
        return self._seldom[1:]

    def _run(self, *command: str) -> str:
        return self._bytes(*command).decode("utf-8", "surrogateescape")


def _begin(value: str) -> str:
    """A begin time as scontrol takes it."""
    if value.startswith("+"):
        return f"now{value}"
    return "now" if value == changes.NOW else local_time(value)


def _node_count(value: str) -> str:
    """A number of nodes as scontrol takes it; 0 at the end stands for no bound."""
    if "-" in value:
        return value
    return "1-0" if value == changes.ANY_NODES else f"{value}-{value}"


_AS_SCONTROL: Mapping[str, Callable[[str], str]] = {"begin": _begin, "node_count": _node_count}
"""Values that scontrol takes in another form."""


def _key(one: JobText | text.QueueLine) -> tuple[object, ...]:
    if isinstance(one, JobText):
        excluded = excluded_nodes.of_the_user(one.excluded, readable(one.admin_comment))
    else:
        excluded = one.job.excluded
    return one.tres_per_node, one.tres_per_job, one.admin_comment, excluded


def run_command(*command: str) -> bytes:
    """Run one of Slurm's commands and return what it printed."""
    # Times as seconds since 1970, so that no time zone comes in between.
    # All tasks of an array, not only those that fit on a screen.
    WAITS.begin()
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            [os.fsencode(word) for word in command],
            check=True,
            capture_output=True,
            timeout=_SECONDS,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except OSError as problem:
        raise not_started(command[0], problem) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer within {_SECONDS} s; is slurmctld up?") from None
    except subprocess.CalledProcessError as ended:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        raise failed(f"{' '.join(command[:3])} failed: {said[-1] if said else ended.returncode}") from None
    if "--ctld" in command and b"error:" in done.stderr:
        # scancel's exit status is 0 then.
        raise failed(f"scancel failed: {done.stderr.decode('utf-8', 'replace').strip().splitlines()[-1]}")
    return done.stdout
