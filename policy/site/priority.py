"""The priority of processes that help: berthd and Slurm on the same machine go first."""

import contextlib
import os

_NICENESS = 10


def give_way() -> None:
    """Lowers this process's priority, for good."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
