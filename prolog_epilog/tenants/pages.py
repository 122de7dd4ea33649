"""Makes and removes the pages by which guard and job communicate, for each job on a file system of its own.

A job may write into its own pages. It can also take blocks beyond their end, which the size of a file does not show. On
root's file system these would take the room of all other jobs.
"""

from collections.abc import Sequence
from pathlib import Path

from prolog_epilog.errors import StateError
from prolog_epilog.injob import word
from prolog_epilog.node import files, mounts
from prolog_epilog.node.paths import Paths

_FIRST = 1
"""Process 1 has the mounts of the node. The guard gets them from it."""


def make(paths: Paths, job: int, uuids: Sequence[str], uid: int) -> tuple[tuple[Path, ...], str]:
    """Makes a job's pages; returns their paths, and the reason why they have no file system of their own, if so."""
    folder = paths.word(job)
    # An earlier run of the job may have left some for fewer GPUs.
    remove(paths, job)
    files.own_folder(paths.words, files.THROUGH)
    # The release before made it with a mode in which all users could list it.
    paths.words.chmod(files.THROUGH)
    files.own_folder(folder, files.THROUGH)
    lack = _mount(folder, 2 * len(uuids))
    return word.create(folder, uuids, uid, -1), lack


def _mount(folder: Path, count: int) -> str:
    try:
        mounts.mount_small(folder, count)
    except OSError as problem:
        return f"{problem.strerror or problem}"
    if mounts.is_seen(folder, _FIRST):
        return ""
    mounts.unmount(folder)
    return "the guard does not see what slurmd mounts"


def remove(paths: Paths, job: int) -> None:
    """Removes a job's pages; a process that still has one open keeps its last order until the lease ends."""
    folder = paths.word(job)
    if folder.is_symlink() or not folder.is_dir():
        return
    try:
        mounts.unmount(folder)
    except OSError as problem:
        raise StateError(f"{problem.strerror}; its job is over: umount {folder}") from None
    word.remove(folder)
