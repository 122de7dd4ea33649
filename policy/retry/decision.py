# SPDX-License-Identifier: Apache-2.0
"""Decides whether a failed job is tried again, where, and after what wait.

    >>> from policy.retry.classify import Classification
    >>> lost = Classification("mpi_runtime_failure", transient=True, reason="Connection reset by peer")
    >>> decide([Trial(lost, nodes=("n7",), ran_s=7_200)], Limits())
    RetryDecision(again=True, reason='a peer, a node or the network between them was lost: try 2 of 4, ...

A failure that comes back on other nodes soon after each start follows the job and not the place, whatever its class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policy.retry.classes import CLASSES, NO_SIGNATURE
from policy.retry.classify import Classification, is_state

FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3_600.0
"""Back-off before the second try, doubled for each further one, and its end."""
EARLY_S = 600.0
"""A trial that ends sooner has hardly begun to work."""
_FINAL = {
    "COMPLETED": "it has not failed",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "it reached its time limit, as it would again; ask for more time",
    "DEADLINE": "its deadline has passed",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One failed run of a job."""

    failure: Classification
    nodes: tuple[str, ...]
    ran_s: float
    state: str = "FAILED"
    """As sacct writes it."""
    bad_nodes: tuple[str, ...] = ()
    """Those of its nodes that are known to be at fault."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a job's tries."""

    tries: int = 4
    """`--retry`, and one."""
    requeue: bool = True
    """Slurm may requeue it."""
    requeues_left: int = 5
    """Requeues left of Slurm's own max_batch_requeue."""
    spare_nodes: int = 1_000_000
    """Nodes beyond those that it needs: more cannot be excluded."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The decision about a failed job."""

    again: bool
    reason: str
    wait_s: float = 0.0
    exclude_nodes: tuple[str, ...] = ()


def decide(trials: Sequence[Trial], limits: Limits, others: str = "") -> RetryDecision:
    """After the last of a job's failed trials, which come in order; `others`: why its retries are another system's."""
    if others:
        return RetryDecision(again=False, reason=others)
    last = trials[-1]
    kind = CLASSES[last.failure.failure]
    if final := next((reason for state, reason in _FINAL.items() if is_state(last.state, state)), ""):
        return RetryDecision(again=False, reason=final)
    if not last.failure.transient:
        return RetryDecision(
            again=False, reason=f"{kind.what}, which another try does not change: {last.failure.reason}"
        )
    if not limits.requeue:
        return RetryDecision(again=False, reason=f"{kind.what}, but it was submitted with --no-requeue")
    if limits.requeues_left < 1:
        return RetryDecision(
            again=False, reason=f"{kind.what}, but Slurm has requeued it as often as max_batch_requeue allows"
        )
    # One that was pushed out is not the job's fault.
    tries = max(1, sum(trial.failure.failure != "job_preempted" for trial in trials))
    if tries >= limits.tries:
        return RetryDecision(again=False, reason=f"{kind.what}: {tries} tries in a row failed")
    if _follows_the_job(trials):
        return RetryDecision(again=False, reason=f"{kind.what}, again and on other nodes: it is the job, not the place")
    nodes = _excluded(trials, limits.spare_nodes)
    # Its owner's higher job has what it wants; the job that was pushed out need not wait for a repair.
    wait = 0.0 if kind.name == "job_preempted" else min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (tries - 1))
    without = f", without {', '.join(nodes)}" if nodes else ""
    reason = f"{kind.what}: try {tries + 1} of {limits.tries}, from the start, in {wait:.0f} s{without}"
    return RetryDecision(again=True, reason=reason, wait_s=wait, exclude_nodes=nodes)


def _follows_the_job(trials: Sequence[Trial]) -> bool:
    if len(trials) < 2:
        return False
    before, last = trials[-2:]
    kind = CLASSES[last.failure.failure]
    if before.failure.failure != kind.name or not (kind.suspect or kind.name == NO_SIGNATURE):
        return False
    elsewhere = kind.name == NO_SIGNATURE or not set(before.nodes) & set(last.nodes)
    return elsewhere and max(before.ran_s, last.ran_s) < EARLY_S


def _excluded(trials: Sequence[Trial], spare: int) -> tuple[str, ...]:
    """Nodes to stay away from: of the last trials first, as far as there are others."""
    nodes: dict[str, None] = {}
    suspected: set[str] = set()
    for trial in trials:
        if not CLASSES[trial.failure.failure].suspect:
            continue
        # Of several nodes it is not known which one, until one of them is there a second time.
        guilty = trial.bad_nodes or (trial.nodes if len(trial.nodes) == 1 else tuple(suspected & set(trial.nodes)))
        suspected |= set(trial.nodes)
        nodes |= dict.fromkeys(sorted(guilty))
    return tuple(list(nodes)[::-1][: max(0, spare)][::-1])
