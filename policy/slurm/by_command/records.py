# SPDX-License-Identifier: Apache-2.0
"""Job records from Slurm's JSON, which is slow, but has all texts of a job exact to the byte."""

from contextlib import suppress
from dataclasses import dataclass

from policy.formats.slurm_facts import JobText
from policy.slurm import fields
from policy.slurm.by_command import job_json
from policy.slurm.by_command.job_json import JobJson
from policy.slurm.unreadable import RECORD_FAULTS


@dataclass(frozen=True, slots=True)
class RecordText:
    """The texts of a job's record."""

    job: JobText
    name: str
    """scontrol's name for this job alone: `ARRAY_TASK` for a task, as its number may be the whole array's."""
    holds: tuple[int, ...]
    """By node, a mask of the GPUs that the job holds."""
    tasks: str = ""
    """The tasks of an array that have not split off."""


def jobs(data: bytes) -> dict[int, RecordText]:
    """Reads the output of `squeue --json` or `scontrol show job --json`."""
    found: dict[int, RecordText] = {}
    for job in job_json.decode(data):
        # A job whose record cannot be read counts as unknown.
        with suppress(*RECORD_FAULTS):
            found[job.job_id] = _record(job)
    return found


def _record(job: JobJson) -> RecordText:
    return RecordText(
        JobText(
            id=job.job_id,
            state=job.state,
            user_id=job.user_id,
            admin_comment=job.admin_comment,
            extra=job.extra,
            required=job.required_nodes,
            tres_per_node=job.tres_per_node,
            tres_per_job=job.tres_per_job,
            excluded=job.excluded_nodes,
            licenses=job.licenses,
            tres_per_task=job.tres_per_task,
        ),
        str(job.name),
        tuple(map(fields.held, job.gres_detail)),
        fields.tasks(job.array_task_string)[0],
    )
