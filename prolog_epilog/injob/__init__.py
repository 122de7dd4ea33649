"""Inside the job: heartbeat, gate and memory scaling.

    import berth_injob            # or, where Berth is installed: from prolog_epilog import injob

    berth_injob.ready()           # preparation is over
    for batch in data:
        train(batch)
        berth_injob.step()        # one step is done
    berth_injob.loss(validate())  # after each validation: when the best was seen is told
    berth_injob.gate()            # anywhere within a step: a good place to pause

PyTorch programs need none of these calls: the hooks of `torch_hooks` make them. Without a guard on the node, or without
a word for the job, every call returns at once, and `why()` says why.
"""

from __future__ import annotations

import os

from prolog_epilog.injob.job import Job, open_job

__all__ = ["gate", "job", "loss", "ready", "step", "why"]

_job: Job | None = None


def job() -> Job:
    """The job of the calling process, opened at first need."""
    global _job  # noqa: PLW0603 - one process has one job
    if _job is None:
        _job = open_job()
    return _job


def ready() -> bool:
    """Say that preparation is over and the steps begin; whether there is a guard to hear it."""
    return job().ready()


def step(seconds: float | None = None, own: float | None = None) -> None:
    """Tell of a finished step, or of a served request and how long it took; then idle what is still owed.

    `own`: seconds that this rank's GPU took for it without waiting for other ranks, where the program knows them.
    """
    job().step(seconds, own)


def loss(value: float) -> None:
    """Tell of the loss that this training is judged by, as after each validation: lower is better."""
    job().loss(value)


def gate() -> None:
    """Wait here for as long as the guard asks."""
    job().gate()


def why() -> str:
    """Why there is nothing to do, in a sentence; empty where a guard listens."""
    return job().why


def _in_child() -> None:
    """A child has a place of its own; the parent's goes with the parent."""
    global _job  # noqa: PLW0603 - see above
    if _job is not None and _job.place is not None:
        _job.place.close()
    _job = None


os.register_at_fork(after_in_child=_in_child)
