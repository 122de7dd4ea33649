# SPDX-License-Identifier: Apache-2.0
"""Users whose programs brought MPS down: for a time they share no fault domain with other users on this node."""

import time
from contextlib import suppress

from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths

SECONDS = 3_600.0


def set_apart(paths: Paths, uid: int) -> None:
    """Keeps this user apart for an hour from now on."""
    files.prepare(paths)
    files.own_folder(paths.fault_users)
    (paths.fault_users / str(uid)).touch(0o600)


def left(paths: Paths, uid: int) -> float:
    """Returns the seconds for which this user is still kept apart; 0: none."""
    mark = paths.fault_users / str(uid)
    with suppress(OSError):
        seconds = mark.stat().st_mtime + SECONDS - time.time()
        if seconds > 0.0:
            return min(seconds, SECONDS)
        mark.unlink(missing_ok=True)
    return 0.0
