"""How a job ended, from its record: the slow form, asked for of jobs that failed and of no others."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from policy import hostlist
from policy.errors import SlurmError
from policy.slurm import changes
from policy.slurm.command import run_command

TRIES = 4
"""Of `--retry=auto`, the first run among them."""


class _Number(msgspec.Struct, frozen=True):
    set: bool = False
    number: int = 0


class _Signal(msgspec.Struct, frozen=True):
    id: _Number = _Number()


class _Code(msgspec.Struct, frozen=True):
    return_code: _Number = _Number()
    signal: _Signal = _Signal()


class _Job(msgspec.Struct):
    job_id: int
    job_state: list[str] | str
    admin_comment: str = ""
    partition: str = ""
    nodes: str = ""
    start_time: _Number = _Number()
    end_time: _Number = _Number()
    exit_code: _Code = _Code()
    restart_cnt: int = 0
    requeue: bool = True
    batch_flag: bool = False
    standard_output: str = ""
    standard_error: str = ""
    stdout_expanded: str = ""
    stderr_expanded: str = ""
    array_job_id: _Number = _Number()
    array_task_id: _Number = _Number()


class _Answer(msgspec.Struct):
    jobs: list[_Job]


_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What Slurm says of a job that is over."""

    id: int
    name: int | str
    """How Slurm names this job alone: of an array's task `ARRAY_TASK`, as its number may be the whole array's."""
    state: str
    values: Mapping[str, str] | None
    """Its segment."""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    started: int = 0
    ended: int = 0
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    """How often Slurm has requeued it."""
    may_requeue: bool = True
    """Whether its user lets Slurm requeue it, and it has a script."""
    logs: tuple[str, ...] = ()
    """Where its output went; its user's text."""


def outcome(job_id: int, run: Callable[..., bytes] = run_command) -> Outcome:
    """Ask for one job's record."""
    found = [job for job in _decode(run("scontrol", "show", "job", str(job_id), "--json")) if job.job_id == job_id]
    if not found:
        raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")
    return _outcome(found[0])


def tries(values: Mapping[str, str]) -> int:
    """How often a job with `--retry` may run in a row without success."""
    retry = values.get("f.retry", "")
    return int(retry) + 1 if retry.isascii() and retry.isdigit() else TRIES


def _decode(data: bytes) -> list[_Job]:
    try:
        return _DECODER.decode(data).jobs
    except UnicodeDecodeError:
        # Slurm passes on whatever bytes a user wrote; the slower reader takes them as they are.
        return msgspec.convert(json.loads(data.decode("utf-8", "surrogateescape")), _Answer).jobs
    except msgspec.MsgspecError as problem:
        raise SlurmError(f"Slurm's JSON of a job has another form than Berth knows: {problem}") from None


def _outcome(job: _Job) -> Outcome:
    is_task = job.array_task_id.set and job.array_job_id.set and job.array_job_id.number > 0
    # Later releases show the path as the user wrote it, and beside it what became of it.
    out, error = job.stdout_expanded or job.standard_output, job.stderr_expanded or job.standard_error
    return Outcome(
        id=job.job_id,
        name=f"{job.array_job_id.number}_{job.array_task_id.number}" if is_task else job.job_id,
        state=job.job_state if isinstance(job.job_state, str) else next(iter(job.job_state), ""),
        values=changes.segment_of(job.admin_comment),
        partition=job.partition,
        nodes=hostlist.expand(job.nodes),
        started=job.start_time.number,
        ended=job.end_time.number,
        exit_code=job.exit_code.return_code.number,
        signal=job.exit_code.signal.id.number,
        restarts=job.restart_cnt,
        may_requeue=job.requeue and job.batch_flag,
        logs=tuple(dict.fromkeys(path for path in (out, error) if path.startswith("/"))),
    )
