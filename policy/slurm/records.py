"""Job records through Slurm's JSON, the slow form that has all texts of a job exact to the byte."""

import json
from dataclasses import dataclass

import msgspec

from policy.errors import SlurmError
from policy.slurm import fields
from policy.slurm.interface import JobText


class _Number(msgspec.Struct, frozen=True):
    set: bool = False
    number: int = 0


class _Job(msgspec.Struct):
    job_id: int
    job_state: list[str] | str
    user_id: int = 0
    admin_comment: str = ""
    extra: str = ""
    required_nodes: str = ""
    tres_per_node: str = ""
    tres_per_job: str = ""
    gres_detail: list[str] = []
    array_job_id: _Number = _Number()
    array_task_id: _Number = _Number()


class _Answer(msgspec.Struct):
    jobs: list[_Job]


_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Record:
    """What a job's record says."""

    job: JobText
    name: str
    """As scontrol takes it for this job alone: of a task `ARRAY_TASK`, because the number may be the whole array's."""
    holds: tuple[int, ...]
    """The GPUs that it holds on each of its nodes."""


def jobs(data: bytes) -> dict[int, Record]:
    """Read `squeue --json` or `scontrol show job --json`."""
    return {job.job_id: _record(job) for job in _decode(data)}


def _record(job: _Job) -> Record:
    state = job.job_state if isinstance(job.job_state, str) else job.job_state[0] if job.job_state else ""
    is_task = job.array_task_id.set and job.array_job_id.set
    return Record(
        JobText(
            id=job.job_id,
            state=state,
            user_id=job.user_id,
            admin_comment=job.admin_comment,
            extra=job.extra,
            required=job.required_nodes,
            tres_per_node=job.tres_per_node,
            tres_per_job=job.tres_per_job,
        ),
        f"{job.array_job_id.number}_{job.array_task_id.number}" if is_task else str(job.job_id),
        tuple(map(fields.held, job.gres_detail)),
    )


def _decode(data: bytes) -> list[_Job]:
    try:
        return _DECODER.decode(data).jobs
    except UnicodeDecodeError:
        # Slurm passes on whatever bytes a user wrote; the slower reader takes them as they are.
        return msgspec.convert(json.loads(data.decode("utf-8", "surrogateescape")), _Answer).jobs
    except msgspec.MsgspecError as problem:
        raise SlurmError(f"Slurm's JSON of jobs has another form than Berth knows: {problem}") from None
