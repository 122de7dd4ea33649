# SPDX-License-Identifier: Apache-2.0
"""A job as Slurm's own JSON shows it (`scontrol show job --json`): slow, but with all texts exact to the byte.

Users' commands read it on login nodes, which have Python's standard library alone.
"""

from dataclasses import dataclass, field

from policy.formats.errors import UnreadableError
from policy.slurm.by_command import json_records


@dataclass(frozen=True, slots=True)
class Number:
    """A number that may not be set."""

    set: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class _Signal:
    id: Number = Number()


@dataclass(frozen=True, slots=True)
class _Code:
    return_code: Number = Number()
    signal: _Signal = _Signal()


@dataclass(frozen=True, slots=True)
class JobJson:
    """The fields that Berth reads; differences between releases are handled here."""

    job_id: int
    job_state: list[str] | str
    user_id: int = 0
    admin_comment: str = ""
    comment: str = ""
    extra: str = ""
    partition: str = ""
    nodes: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    licenses: str = ""
    tres_per_node: str = ""
    tres_per_job: str = ""
    tres_per_task: str = ""
    gres_detail: list[str] = field(default_factory=list)
    start_time: Number = Number()
    end_time: Number = Number()
    exit_code: _Code = _Code()
    restart_cnt: int = 0
    requeue: bool = True
    batch_flag: bool = False
    standard_output: str = ""
    standard_error: str = ""
    stdout_expanded: str = ""
    stderr_expanded: str = ""
    array_job_id: Number = Number()
    array_task_id: Number = Number()
    array_task_string: str = ""
    """The tasks of an array that have no record of their own yet."""
    het_job_id: Number = Number()
    het_job_offset: Number = Number()

    @property
    def state(self) -> str:
        """Returns the first word of its state; the others are flags."""
        return self.job_state if isinstance(self.job_state, str) else next(iter(self.job_state), "")

    @property
    def name(self) -> int | str:
        """Returns scontrol's name for this job alone: `ARRAY_TASK`, as a task's number may be the whole array's."""
        is_task = self.array_task_id.set and self.array_job_id.set and self.array_job_id.number > 0
        return f"{self.array_job_id.number}_{self.array_task_id.number}" if is_task else self.job_id

    @property
    def part(self) -> str:
        """Returns its user's name for it, `JOB+PART`, if it is a part of a heterogeneous job; else empty."""
        is_part = self.het_job_id.set and self.het_job_offset.set and self.het_job_id.number > 0
        return f"{self.het_job_id.number}+{self.het_job_offset.number}" if is_part else ""

    @property
    def logs(self) -> tuple[str, ...]:
        """Returns the paths of its output. Later releases show a path both as its user wrote it and expanded."""
        out, error = self.stdout_expanded or self.standard_output, self.stderr_expanded or self.standard_error
        return tuple(dict.fromkeys(path for path in (out, error) if path.startswith("/")))


def decode(data: bytes) -> list[JobJson]:
    """Returns the jobs of an answer; unreadable records are left out if another one can be read."""
    try:
        found, problems = json_records.read_each(JobJson, data, "jobs")
    except ValueError as problem:
        found, problems = [], [str(problem)]
    if problems and not found:
        raise UnreadableError(f"Slurm's JSON of jobs has another form than Berth knows: {problems[0]}") from None
    return found
