# SPDX-License-Identifier: Apache-2.0
"""A job's end: the class of its failure, and what its plan says afterwards. No text of a log gets into the plan."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policy.formats.errors import FormatError
from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.outcome import Outcome, requeues_left
from policy.formats.plan_fields import (
    AGAIN,
    DEGRADED,
    EVICTED,
    FAIL,
    FAIL_AT,
    FAIL_TEXT,
    MOVE_UNTIL,
    MOVES,
    NODES,
    RETRY_TEXT,
    TRIED_BEFORE,
    K,
    holds_place,
)
from policy.formats.slurm_facts import JobFacts, Reading
from policy.formats.wire import unescape
from policy.plan.jobs.waiting_jobs import asked_nodes, avoiding
from policy.retry import history
from policy.retry.classes import NO_SIGNATURE
from policy.retry.classify import Classification, Facts, classify
from policy.retry.decision import Limits, RetryDecision, Trial
from policy.retry.rules import shipped_rules
from policy.slurm.outcomes import tries

AVOID_FOR = 6 * 3_600.0
"""Seconds for which a job avoids a suspected node: the node may be innocent."""

_PAYLOAD = re.compile(
    rb"berth/1 failed job=([1-9][0-9]{0,9}) node=([A-Za-z0-9_.-]{1,255}) start=(0|[1-9][0-9]{0,10})"
    rb" class=([a-z_]{1,32}) transient=([01]) sign=([!-Z\\^-~]{1,400})( degraded)?"
)
_MOST_JOBS = 2**32 - 1
_OF_THE_LAST_FAILURE = (AGAIN, RETRY_TEXT, TRIED_BEFORE)
LEFT_BY_LOSS = frozenset({"mpi_runtime_failure", "job_preempted", NO_SIGNATURE})
"""Classes that the other nodes of a job report when one is lost; Slurm knows which one, so Slurm's state counts."""
_PUT_BACK_BY_BERTH = (EVICTED, DEGRADED, MOVES)
"""Fields that change when Berth itself requeues a job."""
BY_BERTH = (AGAIN, MOVE_UNTIL, *_PUT_BACK_BY_BERTH)
"""Fields in the plan of a job that Berth itself may have requeued."""


@dataclass(frozen=True, slots=True)
class NodeWord:
    """A message of a node about the log of a job that failed there (docs/develop/formats.md, 11.5)."""

    job: int
    node: str
    failure: str
    transient: bool
    sign: str
    start: int = 0
    """The start of the run; 0 if the node cannot tell."""
    degraded: bool = False
    """True if that node could not set the job's share up."""


def read_word(payload: bytes) -> NodeWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None or int(match[1]) > _MOST_JOBS:
        return None
    try:
        sign = unescape(match[6].decode())
    except FormatError:
        return None
    if not sign.isprintable():
        return None
    transient, degraded = match[5] == b"1", match[7] is not None
    return NodeWord(int(match[1]), match[2].decode(), match[4].decode(), transient, sign, int(match[3]), degraded)


def class_of(found: Outcome, word: NodeWord | None) -> Classification:
    """Classifies a failure by Slurm's state, which is no guess; else by the log; else by the exit code."""
    by_state = classify(b"", Facts(state=found.state), shipped_rules())
    if by_state.failure != NO_SIGNATURE:
        return by_state
    if word is not None:
        return Classification(word.failure, word.transient, word.sign, word.sign)
    return classify(b"", Facts(found.exit_code or None, found.signal), shipped_rules())


def as_it_ran(job: JobFacts) -> JobFacts:
    """Returns a job that ends with all nodes of its place: Slurm no longer names lost nodes, or those that are done."""
    planned = job.known.get(NODES, ()) if holds_place(job.plan) else ()
    return replace(job, nodes=tuple(dict.fromkeys((*job.nodes, *planned))))


def lost_nodes(before: JobFacts, reading: Reading) -> tuple[str, ...]:
    """Returns the nodes of a job that are lost. A node that its Epilog drained is not."""
    there = {node.name for node in reading.nodes if not node.lost}
    return tuple(name for name in before.nodes if name not in there)


def began_anew(before: JobFacts, boot_times: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the nodes of a job that booted since it started: Slurm need not have set them down."""
    return tuple(name for name in before.nodes if before.start and boot_times.get(name, 0) > before.start)


def put_back(before: JobFacts, at: float, lost: Sequence[str], anew: Sequence[str] = ()) -> Trial:
    """Returns the run of a job that was requeued while it ran: because a node was lost, or from outside."""
    ran = at - (before.start or at)
    if lost or anew:
        sign = f"node {lost[0]} was lost" if lost else f"node {anew[0]} booted while it ran"
        failure = Classification("mpi_runtime_failure", transient=True, reason=sign, sign=sign)
        return Trial(failure, before.nodes, ran, "NODE_FAIL", bad_nodes=tuple(lost or anew))
    sign = "it was put back into the queue from outside"
    told = Classification("job_preempted", transient=True, reason=sign, sign=sign)
    return Trial(told, before.nodes, ran, "PREEMPTED")


def by_berth(before: JobPlan, now: JobPlan) -> bool:
    """Tells whether Berth itself requeued a job."""
    if MOVE_UNTIL in before or MOVE_UNTIL in now:
        return True
    return before.only(_PUT_BACK_BY_BERTH) != now.only(_PUT_BACK_BY_BERTH)


def limits(found: Outcome, reading: Reading, config: Mapping[str, str]) -> Limits:
    """Returns the limits on the tries of a job with `--retry`."""
    plan = found.plan or NOTHING
    left = requeues_left(found, config)
    return Limits(tries(plan), found.may_requeue, left, _spare_nodes(plan, len(found.nodes), reading, found.partition))


def _spare_nodes(plan: JobPlan, needed: int, reading: Reading, partition: str) -> int:
    """Returns the number of nodes that a job does not need; 0 if its user has named nodes."""
    if asked_nodes(plan):
        return 0
    k = plan.get(K, 1)
    able = [node for node in reading.nodes if node.up and partition in node.partitions and node.gpus >= k]
    return max(0, len(able) - needed)


def failed(plan: JobPlan, runs: Sequence[Trial], ended: int, decision: RetryDecision | None, at: float) -> JobPlan:
    """Returns the plan of a job after a run that failed."""
    last = runs[-1].failure
    told = plan.without(*_OF_THE_LAST_FAILURE).having(FAIL(last.failure), FAIL_TEXT(last.sign), FAIL_AT(ended))
    told |= history.written(runs)
    if decision is None:
        return told
    told = told.having(RETRY_TEXT(decision.reason), AGAIN(int(at + decision.wait_s) if decision.again else None))
    if not decision.exclude_nodes:
        return told
    return told.having(avoiding(plan, at, dict.fromkeys(decision.exclude_nodes, at + AVOID_FOR)))
