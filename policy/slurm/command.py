"""The gateway that is always there: Slurm's own commands."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from policy import segment
from policy.errors import FormatError, SlurmError
from policy.facts import JobFacts, Memory, Reading
from policy.slurm import records, text
from policy.slurm.interface import JobText, Pin

_SECONDS = 20
_MOST_RECORDS = 400
"""Job records asked for in one reading: each costs Slurm's JSON writer about a millisecond."""

_RARELY = 15.0
"""Seconds between readings of what seldom changes: configuration and who is in control."""

Runner = Callable[..., bytes]
"""Runs one command line, word by word, and returns its output."""


class CommandGateway:
    """Runs scontrol and squeue; nothing that a user wrote ever becomes part of a command but as one argument."""

    def __init__(self, run: Runner | None = None, name: str = "command") -> None:
        self.name = name
        self._bytes = run or run_command
        self._segments: dict[int, tuple[str, dict[str, str] | None]] = {}
        self._seldom: tuple[float, Mapping[str, str], bool] | None = None

    def version(self) -> str:
        """Slurm's version."""
        return self._run("scontrol", "version").rpartition(" ")[2].strip()

    def in_control(self) -> bool:
        """Whether the first controller that answers, which is the one that decides, is on this host."""
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
        config, in_control = self._read_seldom()
        at = time.time()
        nodes = text.nodes(self._run("scontrol", "show", "node", "-o", "-d"))
        states = "all" if ended else text.JOB_STATES
        queue = list(text.jobs(self._run("squeue", "-h", "-a", "-t", states, "-O", text.QUEUE_FORMAT)))
        self._read_segments(queue)
        jobs = tuple(replace(job, segment=self._segment_of(job)) for job, _ in queue)
        memory_counts = "MEMORY" in config.get("SelectTypeParameters", "").upper()
        return Reading(
            at=at,
            nodes=tuple(nodes),
            jobs=jobs,
            partitions=text.partitions(self._run("scontrol", "show", "partition", "-o", "-a")),
            reservations=text.reservations(self._run("scontrol", "show", "reservation", "-o")),
            seen=frozenset(job.segment["id"] for job in jobs if job.segment and "id" in job.segment),
            memory=text.memory(config, dict(re.findall(r"(\w+)=(\d+)", config.get("JobDefaults", ""))))
            if memory_counts
            else Memory(),
            memory_counts=memory_counts,
            version=config.get("SLURM_VERSION", ""),
            in_control=in_control,
        )

    def job(self, job_id: int) -> JobText:
        """One job's record, through JSON."""
        try:
            found = records.jobs(self._bytes("scontrol", "show", "job", str(job_id), "--json"))
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            found = []
        for job in found:
            if job.id == job_id:
                return job
        raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")

    def pin(self, job_id: int, pin: Pin) -> None:
        """Write a place. `disable_job_shrink` keeps an update that comes too late from harming a running job."""
        job = self._pending(job_id)
        gpus = ",".join(map(str, pin.gpus))
        nodes = ",".join(pin.nodes)
        self._update(
            job_id,
            **_typed(job, pin),
            ReqNodeList=nodes,
            AdminComment=segment.put(job.admin_comment, pin.values),
            Extra=segment.put(job.extra, {"nodes": nodes, "gpus": gpus}),
        )

    def release(self, job_id: int, reason: str) -> bool:
        """Give a waiting job back to Slurm with a request equal to the user's."""
        job = self._pending(job_id)
        values = segment.fields(job.admin_comment)
        if values is None or values.get("state") not in segment.PINNED_STATES:
            return False
        asked = dict(item.partition(":")[::2] for item in values.get("asked", "").split(";"))
        kept = {key: value for key, value in values.items() if key not in {"nodes", "gpus", "seats", "start"}}
        self._update(
            job_id,
            **_untyped(job, values),
            ReqNodeList=asked.get("req_nodes", ""),
            AdminComment=segment.put(job.admin_comment, {**kept, "state": "released", "why": reason}),
            Extra=segment.remove(job.extra),
        )
        return True

    def pinned_jobs(self) -> list[int]:
        """Waiting jobs with typed GPUs and required nodes, as our pins have."""
        queue = text.jobs(self._run("squeue", "-h", "-a", "-t", "PENDING", "-O", text.QUEUE_FORMAT))
        return [job.id for job, _ in queue if job.gpus and job.required]

    def _pending(self, job_id: int) -> JobText:
        job = self.job(job_id)
        if job.state != "PENDING":
            raise SlurmError(f"job {job_id} is {job.state.lower()}, only the place of a waiting job can change")
        return job

    def _update(self, job_id: int, **changes: str) -> None:
        self._run("scontrol", "update", f"JobId={job_id}", *[f"{key}={value}" for key, value in changes.items()])
        self._segments.pop(job_id, None)

    def _read_seldom(self) -> tuple[Mapping[str, str], bool]:
        now = time.monotonic()
        if self._seldom is None or now - self._seldom[0] > _RARELY:
            self._seldom = (now, self.config(), self.in_control())
        return self._seldom[1], self._seldom[2]

    def _read_segments(self, queue: Sequence[tuple[JobFacts, str]]) -> None:
        """Fetch the records of jobs whose pin is new or changed and may matter now; forget jobs that are gone."""
        present = {job.id for job, _ in queue}
        self._segments = {job_id: entry for job_id, entry in self._segments.items() if job_id in present}
        wanted = {
            job.id: key
            for job, key in queue
            if job.gpus and job.required and self._segments.get(job.id, ("", None))[0] != key
            if job.may_start
        }
        some = dict(list(wanted.items())[:_MOST_RECORDS])
        if not some:
            return
        listed = ",".join(map(str, some))
        try:
            found = records.jobs(self._bytes("squeue", "-a", "-t", "all", "--json", f"--jobs={listed}"))
        except SlurmError as problem:
            if "Invalid job id" not in str(problem):
                raise
            return  # it was purged a moment ago
        for job in found:
            if job.id in some:
                self._segments[job.id] = (some[job.id], _segment(job.admin_comment))

    def _segment_of(self, job: JobFacts) -> dict[str, str] | None:
        return self._segments.get(job.id, ("", None))[1]

    def _run(self, *command: str) -> str:
        return self._bytes(*command).decode("utf-8", "surrogateescape")


def _pinned_by_job(job: JobText) -> bool:
    # The plugin pins a job without a script by job, because srun would trip over the other form; keep its choice.
    return "gres/gpu:g" in job.tres_per_job


def _typed(job: JobText, pin: Pin) -> dict[str, str]:
    """The request for exactly these GPUs; by job, each type counts once for each node."""
    by_job = _pinned_by_job(job)
    count = len(pin.nodes) if by_job else 1
    kinds = ("gpu", "seat") if pin.seats else ("gpu",)
    tres = ",".join(f"gres/{kind}:g{gpu}:{count}" for kind in kinds for gpu in pin.gpus)
    return {"TresPerJob" if by_job else "TresPerNode": tres}


def _untyped(job: JobText, values: Mapping[str, str]) -> dict[str, str]:
    """As many GPUs, of Slurm's choice."""
    try:
        n, k = int(values["n"]), int(values["k"])
    except (KeyError, ValueError):
        raise SlurmError(f"the segment of job {job.id} does not say how many GPUs it asked for") from None
    if _pinned_by_job(job):
        return {"TresPerJob": f"gres/gpu:{n * k}"}
    return {"TresPerNode": f"gres/gpu:{k}"}


def _segment(admin_comment: str) -> dict[str, str] | None:
    try:
        return segment.fields(admin_comment)
    except FormatError:
        return None


def run_command(*command: str) -> bytes:
    """Run one of Slurm's commands and return what it printed."""
    # Times as seconds since 1970, so that no time zone comes in between.
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            [os.fsencode(word) for word in command],
            check=True,
            capture_output=True,
            timeout=_SECONDS,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]} is not on PATH; install Slurm's client commands here") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer within {_SECONDS} s; is slurmctld up?") from None
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SlurmError(f"{' '.join(command[:3])} failed: {said[-1] if said else failed.returncode}") from None
    return done.stdout
