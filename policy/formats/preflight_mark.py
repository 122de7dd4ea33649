"""The pre-flight mark in a plan (docs/preflight.md): `preflight=ID` in a waiting job, `run` in a pre-flight."""

import re

from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.plan_fields import PREFLIGHT

IS_ONE = "run"

_VALUE = re.compile(r"run|[1-9][0-9]{0,9}")


def first(plan: JobPlan | None) -> int | None:
    """Returns the pre-flight on which a job depends; None if it has none.

    >>> first(JobPlan.of(PREFLIGHT("4711"))), first(JobPlan.of(PREFLIGHT("run"))), first(None)
    (4711, None, None)
    """
    value = (plan or NOTHING).get(PREFLIGHT, "")
    return int(value) if value.isascii() and value.isdigit() else None


def is_one(plan: JobPlan | None) -> bool:
    """Tells whether a job is a pre-flight."""
    return (plan or NOTHING).get(PREFLIGHT) == IS_ONE


def is_value(value: str) -> bool:
    """Tells whether a submission's value is a mark."""
    return bool(_VALUE.fullmatch(value))
