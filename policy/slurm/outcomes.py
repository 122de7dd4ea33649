# SPDX-License-Identifier: Apache-2.0
"""Reads from a job's record how it ended: the slow JSON form, asked for only about failed jobs."""

from collections.abc import Callable

from policy.formats import hostlist
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan, readable
from policy.formats.outcome import Outcome
from policy.formats.plan_fields import RETRY
from policy.retry.decision import Limits
from policy.slurm.by_command import job_json
from policy.slurm.by_command.command import run_command
from policy.slurm.by_command.job_json import JobJson


def outcome(job_id: int, run: Callable[..., bytes] = run_command) -> Outcome:
    """Returns the outcome of a job, from its record."""
    found = [
        job for job in job_json.decode(run("scontrol", "show", "job", str(job_id), "--json")) if job.job_id == job_id
    ]
    if not found:
        raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")
    return _outcome(found[0])


def tries(plan: JobPlan) -> int:
    """Returns the number of times that a job with `--retry` may run in a row without success."""
    retry = plan.get(RETRY, "")
    return int(retry) + 1 if retry.isascii() and retry.isdigit() else Limits().tries


def _outcome(job: JobJson) -> Outcome:
    return Outcome(
        id=job.job_id,
        name=job.name,
        state=job.state,
        plan=readable(job.admin_comment),
        partition=job.partition,
        nodes=hostlist.expand(job.nodes),
        started=job.start_time.number,
        ended=job.end_time.number,
        exit_code=job.exit_code.return_code.number,
        signal=job.exit_code.signal.id.number,
        restarts=job.restart_cnt,
        may_requeue=job.requeue and job.batch_flag,
        logs=job.logs,
        comment=job.comment,
        user=job.user_id,
    )
