# SPDX-License-Identifier: Apache-2.0
"""The spool of failed jobs that have yet to be looked into: a folder with a bound, and a lock for its one reader.

However many jobs fail while berthd is away, there is one process for them, and no more files than this bound.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from prolog_epilog.errors import NodeError, StateError
from prolog_epilog.job.job import NodeJob
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths

MOST = 256
MOST_OF_A_USER = 64
"""A bound for each user, so that one whose jobs fail by the hundred does not keep out the others' jobs."""

_NAME = re.compile(r"(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,9})")
_START = "SLURM_JOB_START_TIME"
_MOST_EXTRA = 8_192


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that failed, with as much of its environment as is needed."""

    job: NodeJob
    code: str
    at: float
    """The time at which it ended, seconds since 1970."""
    degraded: bool = False
    """True if this node could not set its share up."""


def add(paths: Paths, job: NodeJob, code: str, *, degraded: bool = False) -> None:
    """Leaves a job to the process that holds the lock; raises NodeError if there are too many already."""
    with suppress(FileExistsError):
        paths.root.mkdir(parents=True)
        paths.root.chmod(0o755)
    files.own_folder(paths.failed)
    name = f"{job.uid}.{job.id}"
    if not _NAME.fullmatch(name):
        raise NodeError(f"job {job.id} has no number that can name a file")
    names = [one for one in _names(paths) if one != name]
    of_user = sum(one.startswith(f"{job.uid}.") for one in names)
    if len(names) >= MOST or of_user >= MOST_OF_A_USER:
        raise NodeError(
            f"{len(names)} failed jobs wait for berthd on this node already, {of_user} of its user; is it up?"
        )
    content = {
        "node": job.node,
        "extra": job.extra[:_MOST_EXTRA],
        "start": job.environment.get(_START, "")[:32],
        "code": code,
        "at": time.time(),
        "degraded": degraded,
    }
    files.write(paths.failed / name, json.dumps(content))


def waiting(paths: Paths) -> list[str]:
    """Returns the jobs in turn: the oldest first, but each user's second only after every user's first."""
    found = []
    for name in _names(paths):
        with suppress(OSError):
            found.append(((paths.failed / name).lstat().st_mtime_ns, name))
    before: Counter[str] = Counter()
    turns = []
    for at, name in sorted(found):
        user = name.partition(".")[0]
        turns.append((before[user], at, name))
        before[user] += 1
    return [name for _, _, name in sorted(turns)]


def take(paths: Paths, name: str) -> Failed | None:
    """Takes a job out; None if it is gone, or cannot be read."""
    path = paths.failed / name
    user, _, job = name.partition(".")
    try:
        text = files.read(path)
        path.unlink(missing_ok=True)
        found = json.loads(text or "{}")
        environment = {_START: str(found["start"])}
        made = NodeJob(int(job), int(user), str(found["node"]), str(found["extra"]), (), environment)
        return Failed(made, str(found["code"]), float(found["at"]), found.get("degraded") is True)
    except (StateError, OSError, ValueError, KeyError, TypeError):
        # Remove it, so that it does not block the others.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return None


@contextmanager
def alone(paths: Paths) -> Iterator[bool]:
    """Holds the lock; yields False if another process does. Processes that are forked meanwhile do not hold it."""
    handle = files.sole(paths.failed / ".lock")
    try:
        yield handle >= 0
    finally:
        if handle >= 0:
            os.close(handle)


def _names(paths: Paths) -> list[str]:
    try:
        return [one.name for one in paths.failed.iterdir() if _NAME.fullmatch(one.name)]
    except FileNotFoundError:
        return []
