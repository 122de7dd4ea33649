"""Job records through Slurm's JSON: the only form in which free user text cannot pose as structure."""

import msgspec

from policy.errors import SlurmError
from policy.slurm.interface import JobText


class _Job(msgspec.Struct):
    job_id: int
    job_state: list[str] | str
    user_id: int = 0
    admin_comment: str = ""
    extra: str = ""
    required_nodes: str = ""
    tres_per_node: str = ""
    tres_per_job: str = ""


class _Answer(msgspec.Struct):
    jobs: list[_Job]


_DECODER = msgspec.json.Decoder(_Answer)


def jobs(data: bytes) -> list[JobText]:
    """Read `squeue --json` or `scontrol show job --json`."""
    try:
        answer = _DECODER.decode(data)
    except msgspec.MsgspecError as problem:
        raise SlurmError(f"Slurm's JSON of jobs has another form than Berth knows: {problem}") from None
    return [
        JobText(
            id=job.job_id,
            state=job.job_state if isinstance(job.job_state, str) else job.job_state[0] if job.job_state else "",
            user_id=job.user_id,
            admin_comment=job.admin_comment,
            extra=job.extra,
            required=job.required_nodes,
            tres_per_node=job.tres_per_node,
            tres_per_job=job.tres_per_job,
        )
        for job in answer.jobs
    ]
