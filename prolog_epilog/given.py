# SPDX-License-Identifier: Apache-2.0
"""Compares what Slurm gave a job on this node with what the job's Extra says.

A user may find a way to change a request that Berth has placed already. Then the job pays for one part of a GPU and its
Extra lets it have another. So nothing in an Extra counts before Slurm's own answer on this node agrees with it: which
GPUs, as a whole, in parts or as seats, and how much of each.
"""

from prolog_epilog import chain
from prolog_epilog.errors import Disagreement, ExtraError, Imitated, NodeSlurmError, Untied
from prolog_epilog.here import Here
from prolog_epilog.job import extra
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC, NodeBerth
from prolog_epilog.job.job import NodeJob, first_node
from prolog_epilog.job.slurm import HeldGres
from prolog_epilog.messages import numbered

_WHAT_TO_DO = "cancel it and submit it again"


def look(job: NodeJob, here: Here, *, everywhere: bool) -> tuple[NodeBerth | None, HeldGres | None]:
    """Returns a job's berth, if it is to be believed, and what Slurm gave it, if Slurm was asked.

    For a job with whole GPUs Slurm is asked on its first node, and with `everywhere` on all: that is for a caller that
    needs the answer. Raises Disagreement if the job must not start, and ExtraError if its berth is not to be believed.
    """
    problem: ExtraError | None = None
    try:
        berth = extra.read(job.extra, job.node)
    except ExtraError as error:
        berth, problem = None, error
    if not _has_to_be_asked(job, berth, here, everywhere=everywhere):
        return _believed(berth, problem), None
    try:
        held = here.slurm.held(job.id, job.node, alone=job.environment.get("SLURM_JOB_NODELIST") == job.node)
    except Imitated as error:
        sentence = f"{error}; {_WHAT_TO_DO} under another name and without such a comment"
        raise Disagreement(sentence, hold=False) from None
    except NodeSlurmError as error:
        here.say(f"{error}; what Slurm gave job {job.id} was not compared with its Extra")
        return _by_environment(job, _believed(berth, problem), here), None
    if not held.runs and not held.positions:
        here.say(f"job {job.id} is about to end; what Slurm gave it was not compared with its Extra")
        return _by_environment(job, _believed(berth, problem), here), None
    if (why := objection(held, berth)) and not _may(job, berth, held, here):
        sentence = f"Slurm gave the job {why}" + (f": {problem}" if problem else f"; {_WHAT_TO_DO}")
        raise Disagreement(sentence, hold=held.runs)
    berth = _believed(berth, problem)
    if berth is not None and not berth.is_shared and held.gpus != set(berth.gpus):
        # The job has what it pays for: an administrator has changed it, or its user did before berthd had listed it.
        here.say(f"the job's Extra names GPUs {_list(berth.gpus)}, and Slurm gave it {_list(held.gpus)}: these count")
        return None, held
    return _by_environment(job, berth, here), held


def objection(held: HeldGres, berth: NodeBerth | None) -> str:
    """Returns what is wrong with a job's GPUs; empty if they agree with its Extra, or are only whole GPUs."""
    seats = held.seats - held.gpus
    if berth is None or not berth.is_shared:
        fits = not held.shards and not seats
    elif berth.tier == OPPORTUNISTIC:
        fits = not held.gpus and not held.shards and held.seats == set(berth.gpus)
    elif berth.tier == GUARANTEED:
        fits = not held.shards and not seats and held.gpus == set(berth.gpus)
    else:
        fits = not held.gpus and not held.seats and held.shards == dict.fromkeys(berth.gpus, berth.share)
    return "" if fits else f"{_given(held)} here, and its Extra says {_said(berth)}"


def _may(job: NodeJob, berth: NodeBerth | None, held: HeldGres, here: Here) -> bool:
    """Tells whether a job without a berth may run: an administrator's, or in partitions that Berth leaves alone."""
    if berth is not None or "[berth/" in job.extra:
        return False
    if job.uid == 0 or here.trouble:
        return True
    if not held.seats - held.gpus and here.skips(job.environment.get("SLURM_JOB_PARTITION", "")):
        return True
    try:
        return here.slurm.configuration().get("SlurmUser", "").endswith(f"({job.uid})")
    except NodeSlurmError as problem:
        here.say(numbered(problem))
        return False


def _has_to_be_asked(job: NodeJob, berth: NodeBerth | None, here: Here, *, everywhere: bool) -> bool:
    if "[berth/" not in job.extra and not job.indices:
        return False
    return everywhere or here.has_books() or (berth is not None and berth.is_shared) or _is_first(job)


def _is_first(job: NodeJob) -> bool:
    """Tells whether this is the job's first node; True if Slurm does not say."""
    return first_node(job.environment.get("SLURM_JOB_NODELIST", "")) in {"", job.node}


def _believed(berth: NodeBerth | None, problem: ExtraError | None) -> NodeBerth | None:
    if problem is not None:
        raise problem
    return berth


def _by_environment(job: NodeJob, berth: NodeBerth | None, here: Here) -> NodeBerth | None:
    """Checks a berth by the Prolog's environment: it has only the last of typed GPUs, no seats and no numbers."""
    if berth is None:
        return None
    named = chain.indices(berth.gpus, chain.minors(here.dev))
    if not set(job.indices) <= set(named):
        raise Untied(f"the job's Extra names other GPUs than Slurm gave it ({_list(job.indices)}); requeue the job")
    if berth.is_shared and berth.tier != OPPORTUNISTIC and not job.indices:
        raise Untied("the job's Extra names GPUs, but Slurm gave it none on this node; requeue the job")
    return berth


def _given(held: HeldGres) -> str:
    whole = [f"GPU {gpu}" for gpu in sorted(held.gpus)]
    parts = [f"{percent} % of GPU {gpu}" for gpu, percent in sorted(held.shards.items())]
    seats = [f"a seat on GPU {gpu}" for gpu in sorted(held.seats - held.gpus)]
    return ", ".join([*whole, *parts, *seats]) or "no GPU"


def _said(berth: NodeBerth | None) -> str:
    if berth is None:
        return "nothing of GPUs"
    gpus = _list(berth.gpus)
    if berth.tier == OPPORTUNISTIC:
        return f"a seat on GPU {gpus}"
    return f"GPU {gpus}" if berth.share is None or berth.tier else f"{berth.share} % of GPU {gpus}"


def _list(numbers: "frozenset[int] | tuple[int, ...]") -> str:
    return ",".join(map(str, sorted(numbers))) or "none"
