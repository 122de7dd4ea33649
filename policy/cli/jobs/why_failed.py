# SPDX-License-Identifier: Apache-2.0
"""The rows of `berth why` for a job that failed.

Slurm allows no change to a finished job, so the failure is looked up when a user asks. It is looked up with that user's
rights, so the line of the log is shown only to users who may read the log.
"""

import os
import stat
from collections.abc import Sequence

from policy.formats.job_plan import NOTHING
from policy.formats.outcome import FAILED, Outcome
from policy.formats.plan_fields import BY_OTHERS, RETRY
from policy.retry import history
from policy.retry.classes import CLASSES
from policy.retry.classify import TAIL_BYTES, Classification, Facts, classify, of_last_run
from policy.retry.decision import Limits, decide
from policy.retry.other_systems import reason_to_leave
from policy.retry.rules import Rules
from policy.slurm.outcomes import tries


def failure_rows(found: Outcome, rules: Rules, others: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Returns the failure as rows for people; `others` are the words in comments that name other systems."""
    failure = of_end(found, rules)
    rows = [("failed", f"{failure.failure}: {CLASSES[failure.failure].what}"), ("known by", failure.reason)]
    plan = found.plan or NOTHING
    if RETRY in plan:
        limits = Limits(tries(plan), requeue=found.may_requeue)
        theirs = reason_to_leave(found.comment, others, put_back=BY_OTHERS in plan)
        decision = decide(history.with_last(plan, found, failure), limits, theirs)
        rows.append(("try again", f"{'yes' if decision.again else 'no'}: {decision.reason}"))
    return rows


def preflight_rows(found: Outcome, rules: Rules) -> list[tuple[str, str]]:
    """Returns rows on why a cancelled job's pre-flight failed."""
    if found.state not in FAILED:
        return []
    failure = of_end(found, rules)
    rows = [("failed", f"in its pre-flight: {failure.failure}: {CLASSES[failure.failure].what}")]
    return [*rows, ("known by", failure.reason), *(("see", path) for path in found.logs[:1])]


def of_end(found: Outcome, rules: Rules) -> Classification:
    """Returns the class of a job's failure, as far as the calling user can know it."""
    text = b"\n".join(of_last_run(_end_of(path), found.started) for path in found.logs)
    return classify(text, Facts(found.exit_code or None, found.signal, found.state), rules)


def _end_of(path: str) -> bytes:
    """Returns the end of a log; empty if it cannot be read, is no regular file, or root asks.

    The path is a user's text, so root does not open it.
    """
    if os.geteuid() == 0:
        return b""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return b""
        return os.pread(file, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
    except OSError:
        return b""
    finally:
        os.close(file)
