# SPDX-License-Identifier: Apache-2.0
"""Inside the job: heartbeat, gate and memory scaling.

    import berth_injob            # or, where Berth is installed: from prolog_epilog import injob

    berth_injob.ready()           # preparation is over
    for batch in data:
        train(batch)
        berth_injob.step()        # one step is done
    berth_injob.gate()            # anywhere within a step: a good place to pause

PyTorch programs need none of these calls: the hooks of `torch_hooks` make them. Without a guard on the node, or without
a word for the job, every call returns at once, and `why()` gives the reason.
"""

import os

from prolog_epilog.injob.job import Job, open_job

__all__ = ["gate", "job", "ready", "step", "why"]

_job: Job | None = None


def job() -> Job:
    """Returns the job of the calling process; opens it at the first call."""
    global _job  # noqa: PLW0603 - one process has one job
    if _job is None:
        _job = open_job()
    return _job


def ready() -> bool:
    """Reports that preparation is over and the steps begin; returns whether there is a guard to hear it."""
    return job().ready()


def step(seconds: float | None = None, own: float | None = None) -> None:
    """Reports a finished step, or a served request and how long it took; then idles for the time still owed.

    `own`: the seconds that this rank's GPU took for it without waiting for other ranks, if the program knows them.
    """
    job().step(seconds, own)


def gate() -> None:
    """Waits here for as long as the guard asks."""
    job().gate()


def why() -> str:
    """Returns the reason why there is nothing to do, in a sentence; empty if a guard listens."""
    return job().why


def _in_child() -> None:
    """Drops the parent's place in a forked child: a child takes a place of its own."""
    global _job  # noqa: PLW0603 - see above
    if _job is not None and _job.place is not None:
        _job.place.close()
    _job = None


os.register_at_fork(after_in_child=_in_child)
