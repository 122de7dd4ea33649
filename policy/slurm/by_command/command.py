# SPDX-License-Identifier: Apache-2.0
"""The gateway by Slurm's own commands, which is always available."""

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
"""The most job records asked for in a reading: each costs Slurm's JSON writer about a millisecond."""

_RARELY = 15.0
"""Seconds between two reads of seldom-changing data: configuration, the host in control, federation."""

_HOLDING = frozenset(text.HOLDING_STATES.split(","))
"""States in which a job holds GPUs."""

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
"""scontrol's names for the fields of a change."""

_TEXTS = {
    **{key: key for key in ("tres_per_node", "tres_per_job", "admin_comment", "extra", "licenses")},
    "exc_nodes": "excluded",
}
"""The fields on which later changes are based, with their names in `JobText`."""

_TASKS_AT_ONCE = 20
"""The most tasks of an array that are changed one by one in an update; the next pass changes the others."""

OVER = re.compile(r"already|not running|Invalid job id|not pending|finished|completing", re.IGNORECASE)
"""Slurm's error texts for a job that has ended."""

Runner = Callable[..., bytes]
"""Runs one command line, word by word, and returns its output."""

T = TypeVar("T")


class CommandGateway:
    """Runs scontrol and squeue; a user's text is never more of a command line than one argument."""

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
        """Returns Slurm's version."""
        return self._run("scontrol", "version").rpartition(" ")[2].strip()

    def in_control(self) -> bool:
        """Tells whether the first controller that answers, which is the one in charge, is on this host."""
        try:
            answer = self._run("scontrol", "ping")
        except SlurmError:
            return False
        up = re.findall(r"Slurmctld\([^)]*\) at (\S+) is UP", answer)
        here = socket.gethostname().partition(".")[0]
        return bool(up) and up[0].partition(".")[0] in {here, "localhost"}

    def config(self) -> Mapping[str, str]:
        """Returns the controller's configuration."""
        return text.config(self._run("scontrol", "show", "config"))

    def read(self, *, ended: bool) -> Reading:
        """Reads nodes first, then jobs, so that a job that starts in between is at least in the queue."""
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
        """Completes a reading of nodes and jobs; jobs in the states `left_out` count as seen and are not shown."""
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
        """Returns one job's record, from JSON."""
        return self._record(job_id).job

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool = False) -> None:
        """Writes a place; in a hurry, the job's record is read only if it may have changed."""
        job = self._known_text(job_id) if hurry else self._text(job_id)
        self._update(job_id, job, changes.pin(job, pin))

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        """Gives a waiting job back to Slurm, with a request equal to the user's."""
        return changes.give_back(
            lambda: self._text(job_id),
            # No later pass would change the tasks that are left.
            lambda job, values: self._update(job_id, job, values, most_tasks=None),
            reason,
            for_now=for_now,
        )

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        """Writes another plan; for an array, that of the tasks that have not split off."""
        job = self._text(job_id)
        self._update(job_id, job, changes.annotate(job, plan, requeue=requeue))

    def requeue(self, job_id: int | str) -> None:
        """Requeues a job that runs or has failed."""
        self._run("scontrol", "requeue", job_id if isinstance(job_id, str) else self._name(job_id))

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Writes another plan and a begin time."""
        job = self._text(job_id)
        self._update(job_id, job, changes.delay(job, plan, seconds))

    def evict(self, job_id: int) -> bool:
        """Requeues a running job; returns False if it has ended, or is about to."""
        try:
            self._run("scontrol", "requeue", "Incomplete", self._name(job_id))
        except SlurmError as problem:
            if OVER.search(str(problem)):
                return False
            raise
        return changes.was_put_back(self.job(job_id))

    def cancel(self, job_id: int) -> None:
        """Cancels a job."""
        self._run("scancel", "--ctld", self._name(job_id))

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Sends a signal to the steps of a running job, or only to its script's shell."""
        to = ["--batch"] if batch else []
        # Without --ctld, scancel tries for a minute and a half to signal a job that waits or ends.
        self._run("scancel", "--ctld", *to, "-s", signal, self._name(job_id))

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        """Takes a waiting guest off its node."""
        job = self._text(job_id)
        self._update(job_id, job, changes.park(job, plan, seconds))

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        """Returns waiting jobs with typed GPUs and required nodes, as pins have them, and jobs that may be requeued."""
        states = f"{self._waiting_states()},COMPLETING"
        return changes.pinned((line.job for line in self._read_queue(states).values()), called)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _read_queue(self, states: str) -> dict[int, text.QueueLine]:
        mark = text.new_mark()
        self._unreadable = {}
        # Without -r, squeue would show a waiting task with its own place as a part of its array's record.
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
        """Returns the facts; one that is equal to the last reading's is the same object."""
        kept: list[T] = []
        for fact in facts:
            place = (kind, key(fact))
            old = known.get(place)
            # Equal, so of the same type.
            self._facts[place] = same = old if old == fact else fact
            kept.append(same)
        return tuple(kept)

    def _completed(self) -> Iterable[JobFacts]:
        """Yields the queue's jobs, completed from other lines and other commands."""
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
        """Reads the GPUs of running jobs: typed ones from the request, others only from the job's record."""
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
        """Returns the name of one record alone: a task's number may be that of its whole array."""
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
        """Returns the texts that a change is based on; for a task that has not split off, those of its array."""
        return self._record(job_id if isinstance(job_id, int) else self._record_of(job_id)).job

    def _known_text(self, job_id: int | str) -> JobText:
        """Returns the same texts as the last reading has them, if they have not changed."""
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
        # An array's number would stand for all its tasks, also those that run or have places of their own.
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
        """Changes the tasks of an array that have not split off, such as `11_[4,5]`.

        To change nodes, scontrol takes no list. It takes the array's number as long as no task has a record of its
        own. If it refuses that, the tasks are changed one by one, and each of them gets a record.
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
    """Returns a begin time as scontrol takes it."""
    if value.startswith("+"):
        return f"now{value}"
    return "now" if value == changes.NOW else local_time(value)


def _node_count(value: str) -> str:
    """Returns a number of nodes as scontrol takes it; 0 at the end stands for no bound."""
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
    """Runs one of Slurm's commands; returns its output."""
    # Times as seconds since 1970, without time zones.
    # All tasks of an array, not only those that fit on a screen.
    WAITS.begin()
    # Without what a user has set for these commands: it would leave jobs and nodes out.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SINFO_", "SCANCEL_"))}
    environment = {**kept, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
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
