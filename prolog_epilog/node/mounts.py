# SPDX-License-Identifier: Apache-2.0
"""Mounts a small file system for files that a job may write: a job that fills it harms itself alone."""

import ctypes
import mmap
import os
from pathlib import Path

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH, _NOFOLLOW = 2, 8
_LIBC = ctypes.CDLL(None, use_errno=True)
_MOUNT = _LIBC.mount
_MOUNT.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def mount_small(folder: Path, files: int) -> None:
    """Mounts a tmpfs that holds so many files of one page each; raises OSError where root may not mount."""
    options = f"size={files * mmap.PAGESIZE},nr_inodes={files + 1},mode=0711"
    flags = _NOSUID | _NODEV | _NOEXEC
    if _MOUNT(b"berth", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount a tmpfs")


def unmount(folder: Path) -> None:
    """Unmounts what is mounted there; processes that have a file of it open keep that file."""
    while folder.is_mount():
        if _LIBC.umount2(os.fsencode(folder), _DETACH | _NOFOLLOW):
            raise OSError(ctypes.get_errno(), f"cannot unmount {folder}")


def is_seen(folder: Path, pid: int) -> bool:
    """Tells whether a process sees the same file system there: slurmd may have mounts of its own."""
    try:
        return os.stat(f"/proc/{pid}/root{folder}").st_dev == folder.stat().st_dev  # noqa: PTH116 - a link of the kernel
    except OSError:
        return False
