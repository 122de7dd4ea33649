# SPDX-License-Identifier: Apache-2.0
"""Keeps the GPUs that a job has on this node, from its Prolog to its Epilog: by then Slurm has forgotten them.

There is a file for each job, in /run/berth/given, and only where the site has scripts of its own behind the Epilog.
"""

from collections.abc import Sequence
from contextlib import suppress

from prolog_epilog.errors import NodeError
from prolog_epilog.here import Here
from prolog_epilog.job.job import NodeJob

FORMAT = "berth-given/1"


def keep(job: NodeJob, gpus: Sequence[int], here: Here) -> None:
    """Keeps the indices of a job's GPUs; a failure is only reported."""
    from prolog_epilog.node import files  # noqa: PLC0415 - few sites have such scripts

    paths = here.paths
    try:
        files.prepare(paths)
        files.own_folder(paths.given)
        files.write(paths.given / str(job.id), f"{_begin(job)}{','.join(map(str, gpus))}\n")
    except NodeError as problem:
        here.say(f"{problem}; the scripts behind the Epilog of job {job.id} may see no GPU")


def read(job: NodeJob, here: Here) -> tuple[int, ...] | None:
    """Returns what the Prolog of this very run kept; None if it kept nothing."""
    from prolog_epilog.node import files  # noqa: PLC0415 - see above

    text = None
    with suppress(NodeError):
        text = files.read(here.paths.given / str(job.id))
    if text is None or not text.startswith(_begin(job)):
        return None
    words = text.removeprefix(_begin(job)).rstrip("\n").split(",")
    return tuple(map(int, words)) if all(map(str.isdecimal, words)) else None


def forget(job: NodeJob, here: Here) -> None:
    """Removes what was kept of this run."""
    if read(job, here) is not None:
        (here.paths.given / str(job.id)).unlink(missing_ok=True)


def _begin(job: NodeJob) -> str:
    return f"{FORMAT} start={job.start} gpus="
