"""Keeps the GPUs that a job has on this node, from its Prolog to its Epilog: by then Slurm has forgotten them.

A file for each job, in /run/berth/given. It is there only where the site has scripts of its own behind the Epilog.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

from prolog_epilog.here import Here
from prolog_epilog.job.job import NodeJob

FORMAT = "berth-given/1"
_MOST_BYTES = 4096


def keep(job: NodeJob, gpus: Sequence[int], here: Here) -> None:
    """Keeps the indices of a job's GPUs; a failure is only reported."""
    path = _path(job, here)
    draft = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # noqa: PTH103, PTH120 - pathlib costs 10 ms
        with open(draft, "w", encoding="ascii") as file:  # noqa: PTH123 - see above
            file.write(f"{FORMAT} start={job.start} gpus={','.join(map(str, gpus))}\n")
        os.replace(draft, path)  # noqa: PTH105 - see above
    except OSError as problem:
        here.say(f"{path}: {problem.strerror}; the scripts behind the Epilog of job {job.id} may see no GPU")


def read(job: NodeJob, here: Here) -> tuple[int, ...] | None:
    """Returns what the Prolog of this very run kept; None if it kept nothing."""
    try:
        with open(_path(job, here), encoding="ascii") as file:  # noqa: PTH123 - see above
            text = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return None
    begin = f"{FORMAT} start={job.start} gpus="
    words = text.removeprefix(begin).rstrip("\n").split(",")
    return tuple(map(int, words)) if text.startswith(begin) and all(map(str.isdecimal, words)) else None


def forget(job: NodeJob, here: Here) -> None:
    """Removes what was kept of this run."""
    if read(job, here) is not None:
        with suppress(OSError):
            os.unlink(_path(job, here))  # noqa: PTH108 - see above


def _path(job: NodeJob, here: Here) -> str:
    return f"{here.root}/given/{job.id}"
