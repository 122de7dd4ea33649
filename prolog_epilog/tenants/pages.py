# SPDX-License-Identifier: Apache-2.0
"""Makes and removes the pages by which guard and job communicate, for each job on a file system of its own.

A job may write into its own pages. It can also take blocks beyond their end, which the size of a file does not show. On
root's file system these would take the room of all other jobs.
"""

from collections.abc import Sequence
from pathlib import Path

from prolog_epilog.injob import word
from prolog_epilog.node import files, mounts
from prolog_epilog.node.paths import Paths

_FIRST = 1
"""Process 1 has the mounts of the node. The guard gets them from it."""


def make(paths: Paths, job: int, uuids: Sequence[str], uid: int) -> tuple[tuple[Path, ...], str]:
    """Makes a job's pages; returns their paths, and the reason why they have no file system of their own, if so."""
    folder, lack = paths.word(job), ""
    # An earlier run of the job may have left some for fewer GPUs.
    remove(paths, job)
    files.own_folder(paths.words, files.THROUGH)
    # One that was there may have a mode in which all users can list it.
    paths.words.chmod(files.THROUGH)
    files.own_folder(folder, files.THROUGH)
    try:
        mounts.mount_small(folder, 2 * len(uuids))
        if not mounts.is_seen(folder, _FIRST):
            mounts.unmount(folder)
            lack = "the guard does not see what slurmd mounts"
    except OSError as problem:
        lack = problem.strerror or str(problem)
    return word.create(folder, uuids, uid, -1), lack


def remove(paths: Paths, job: int) -> None:
    """Removes a job's pages; a process that still has one open keeps its last order until the lease ends."""
    mounts.unmount(paths.word(job))
    word.remove(paths.word(job))
