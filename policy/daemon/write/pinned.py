"""The list of pinned jobs (docs/formats.md, section 1.4): what the plugin looks at before a user changes a waiting job.

The plugin asks no daemon from job_modify, where slurmctld holds its write locks; it reads this file.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from policy.formats.errors import DaemonError
from policy.formats.slurm_facts import JobFacts
from policy.plan.waiting_jobs import Waiting
from policy.request import counted

HEADER = b"berth-pinned/2\n\0"

PINNED = 1
"""It has a place."""
PARKED = 2
"""A guest without a seat: nothing but its begin time holds it."""


ELSEWHERE = 4
"""It is in partitions alone that Berth does not touch: what is asked for there is nobody's business."""
UNCHECKED = 8
"""There it asks for GPUs, so that it cannot come to Berth's partitions unseen."""
SHARES = 16
"""It runs beside others on a GPU: were it requeued without its Extra, no node would hold it to its part."""

COUNTED = 32
"""Its licences count its GPUs by model."""


def listed(
    queue: Iterable[Waiting], jobs: Iterable[JobFacts] = (), skipped: frozenset[str] = frozenset()
) -> dict[int, int]:
    """Returns what the plugin has to know of which waiting job; `jobs` are all that Slurm has."""
    kinds: dict[int, int] = defaultdict(int)
    for entry in queue:
        job = entry.job
        if entry.nodes:
            kinds[job.id] |= PINNED
        if entry.parked is not None:
            kinds[job.id] |= PARKED
            if job.tasks:
                # To change one task makes a record of its own of it, with a number that nobody knows yet.
                kinds[job.array or job.id] |= PARKED
    for job in jobs:
        waits = job.state in {"PENDING", "ARRAY"}
        if not waits and job.segment and not job.segment.keys().isdisjoint(("share", "tier")):
            kinds[job.id] |= SHARES
        if "berth_" in job.licenses and counted.ours(job.licenses):
            kinds[job.id] |= COUNTED
        if skipped and waits and skipped.issuperset(job.partition.split(",")):
            # Of a job with a place its owner cannot change the request.
            unchecked = UNCHECKED if job.wants_gpus and not kinds.get(job.id) else 0
            for number in {job.id, job.array} if job.tasks and job.array else {job.id}:
                kinds[number] |= ELSEWHERE | unchecked
    return dict(kinds)


def mark(path: Path) -> tuple[int, int, int] | None:
    """Returns what tells this list from another one; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write(path: Path, jobs: Mapping[int, int]) -> None:
    """Replace the list by these jobs' own ids and kinds; a reader sees the former list or the new one, never a part."""
    words = array("I", [word for job in sorted(jobs.items()) for word in job])
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
