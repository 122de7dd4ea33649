# SPDX-License-Identifier: Apache-2.0
"""The list of pinned jobs (docs/develop/formats.md, 1.4), which the plugin reads before a user changes a waiting job.

The plugin asks no daemon from job_modify, where slurmctld holds its write locks; it reads this file.
"""

import functools
import operator
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from policy.formats.errors import DaemonError
from policy.formats.flags import TIERS
from policy.formats.plan_fields import GPU_TIER, SHARE, TIER
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting import Waiting
from policy.request import counted, tiers
from policy.request.tiers import Rules

HEADER = b"berth-pinned/2\n\0"

PINNED = 1
"""The job has a place."""
PARKED = 2
"""A guest without a seat: nothing but its begin time holds it."""


ELSEWHERE = 4
"""All its partitions are ones that Berth does not touch, where Berth does not check requests."""
UNCHECKED = 8
"""It asks for GPUs there, so it must not come to Berth's partitions unchecked."""
SHARES = 16
"""It runs beside other jobs on a GPU: if it were requeued without its Extra, no node would hold it to its part."""

COUNTED = 32
"""Its licences count its GPUs by model."""
GUEST = 1024
"""It is a guest, waiting or running: it has to be requeued when the owner comes."""

PART = 64
"""It waits for a part of a GPU or for a seat, which only Berth's partitions have."""
BY_PARTITION, BY_QOS = 128, 256
"""Another partition, or another QOS, may not allow its tier; under `ANY_JOB`, the tier of some job."""
NO_GPUS = 512
"""It asks for no GPUs, and its partition does not allow it GPUs of its own."""
ANY_JOB = 0
"""The number of the entry for jobs that the list does not name yet."""


def may_be_bound(job: JobFacts, skipped: frozenset[str] = frozenset(), allowed: Rules = ()) -> bool:
    """Tells whether a job may be of some kind by its record alone; of most jobs only the plan tells."""
    bound = job.guest or job.share or "berth_" in job.licenses or job.known.has_any((SHARE, TIER))
    return bool(bound or allowed or skipped.intersection(job.partition.split(",")))


def listed(
    queue: Iterable[Waiting], jobs: Iterable[JobFacts] = (), skipped: frozenset[str] = frozenset(), allowed: Rules = ()
) -> dict[int, int]:
    """Returns by job the kinds for the plugin.

    `jobs` are those of Slurm that `may_be_bound`, or all; `allowed` are the rules of tiers.
    """
    kinds: dict[int, int] = defaultdict(int)
    for entry in queue:
        job = entry.job
        if entry.nodes:
            kinds[job.id] |= PINNED
        if entry.guest.parked is not None:
            kinds[job.id] |= PARKED | GUEST
            if job.tasks:
                # A change of one task makes a record of its own for it, with a number that is not known yet.
                kinds[job.array or job.id] |= PARKED | GUEST
    for job in jobs:
        waits = job.state in {"PENDING", "ARRAY"}
        if not waits and job.known.has_any((SHARE, TIER)):
            kinds[job.id] |= SHARES
        if job.guest and job.plan:
            kinds[job.id] |= GUEST
        if "berth_" in job.licenses and counted.ours(job.licenses):
            kinds[job.id] |= COUNTED
        if skipped and skipped.issuperset(job.partition.split(",")):
            # The owner of a job with a place cannot change its request.
            unchecked = UNCHECKED if job.wants_gpus and not kinds.get(job.id) else 0
            bound = (ELSEWHERE | unchecked) if waits else 0
        else:
            bound = PART if waits and (job.share or job.guest) else 0
            bound |= _bound_by(allowed, job) if allowed else 0
        # The number of a task that gets a record of its own is not known yet.
        for number in ({job.id, job.array} if job.tasks and job.array else {job.id}) if bound else ():
            kinds[number] |= bound
    if any_tier := functools.reduce(operator.or_, (_forbidden(allowed, {name}) for name in TIERS)):
        kinds[ANY_JOB] = any_tier | NO_GPUS
    return dict(kinds)


def mark(path: Path) -> tuple[int, int, int] | None:
    """Returns a mark that tells two versions of the file apart; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _bound_by(allowed: Rules, job: JobFacts) -> int:
    """Returns the kinds of changes after which the rules of tiers could forbid a job."""
    if not job.wants_gpus:
        may = tiers.find(allowed, "", job.partition.partition(",")[0])
        return NO_GPUS if may and tiers.EXCLUSIVE not in may.split("+") else 0
    said = job.known.get(TIER) or job.known.get(GPU_TIER, "").partition(",")[0] or tiers.EXCLUSIVE
    return _forbidden(allowed, {tiers.EXCLUSIVE, tiers.GUARANTEED} if job.share else {said})


def _forbidden(allowed: Rules, names: set[str]) -> int:
    """Returns the kinds of changes, of partition or of QOS, after which a rule could forbid all of these tiers."""
    against = {rule.kind for rule in allowed if names.isdisjoint(rule.value.split("+"))}
    # Its partition may allow it only by a rule for its present QOS.
    by_qos = against and any(rule.kind == "qos" for rule in allowed)
    return (BY_PARTITION if against - {"qos"} else 0) | (BY_QOS if by_qos else 0)


def write(path: Path, jobs: Mapping[int, int]) -> None:
    """Writes the ids and kinds of these jobs; a reader sees the old list or the new one, never a part."""
    # To sort numbers takes half as long as to sort pairs, and there are tens of thousands.
    words = array("I", [word for number in sorted(jobs) for word in (number, jobs[number])])
    if sys.byteorder == "big":
        words.byteswap()
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with new.open("wb") as file:
            file.write(HEADER + words.tobytes())
        new.replace(path)
    except OSError as problem:
        raise DaemonError(f"cannot write {path}: {problem.strerror}; [hook] pinned_file says where it lies") from None
