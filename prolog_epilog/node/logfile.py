# SPDX-License-Identifier: Apache-2.0
"""The file of [node] log: one line at a time, from several programs at once, of bounded size.

Other users may be able to write to the folder: no link is followed there, nothing is waited for, and only a plain file
is written to.
"""

import fcntl
import os
import stat

MOST_BYTES = 16 << 20
"""A file that has grown beyond this is renamed to FILE.1, and a new one is begun."""


def append(path: str, line: str) -> None:
    """Adds a line; OSError gives the reason if it cannot."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o640)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is not a plain file")
        os.write(file, (line + "\n").encode("utf-8", "backslashreplace"))
        if found.st_size > MOST_BYTES:
            _turn(file, path, found.st_ino)
    finally:
        os.close(file)


def _turn(file: int, path: str, number: int) -> None:
    """Renames the file to FILE.1; if two programs or an admin's logrotate try at once, only one does it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.lstat(path).st_ino == number:
            os.replace(path, f"{path}.1")  # noqa: PTH105 - pathlib costs the Prolog 10 ms
    except OSError:
        # The line is written; the next one tries again.
        return
