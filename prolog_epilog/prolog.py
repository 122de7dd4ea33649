# SPDX-License-Identifier: Apache-2.0
"""The Prolog: runs the site's own Prolog, and sets up the job's share of its GPUs."""

from prolog_epilog import given, remembered
from prolog_epilog.errors import Disagreement, ExtraError, Untied
from prolog_epilog.here import Here, indices_of, run_chain
from prolog_epilog.job import extra
from prolog_epilog.job.extra import NodeBerth
from prolog_epilog.job.job import NodeJob
from prolog_epilog.job.slurm import HeldGres
from prolog_epilog.messages import numbered

_MOST_RESTARTS = 3
"""From so many restarts on a job is requeued no more for GPUs that Slurm has not tied to its share."""


def run(job: NodeJob, here: Here) -> int:
    """Runs the Prolog; an exit status other than 0 takes the node out of service."""
    berth, held, listed = None, None, bool(here.config.jobs_for_dcgm or here.config.jobs_for_jobstats)
    keeps = bool(here.config.chain_epilog) and "[berth/" not in job.extra
    try:
        berth, held = given.look(job, here, everywhere=bool(here.config.chain_prolog) or keeps or listed)
    except Disagreement as problem:
        return _refuse(job, here, problem, hold=problem.hold)
    except ExtraError as problem:
        if extra.asks_share(job.extra):
            again = isinstance(problem, Untied) and job.restarts < _MOST_RESTARTS
            return _refuse(job, here, problem, again=again)
        here.say(numbered(problem))
    code = _begin(job, berth, held, here)
    if listed and not code and (berth is not None or job.environment.get("SLURM_JOB_GPUS")):
        from prolog_epilog import monitoring  # noqa: PLC0415 - few sites want it

        monitoring.arrive(job, berth, held, here)
    return code


def _begin(job: NodeJob, berth: NodeBerth | None, held: HeldGres | None, here: Here) -> int:
    if (berth is not None and berth.is_shared) or ((berth is not None or job.indices) and here.has_books()):
        from prolog_epilog.sharing import tenancy  # noqa: PLC0415 - most jobs share nothing

        if berth is not None and berth.is_shared:
            return tenancy.begin(job, berth, here)
        tenancy.clear(job, berth, here, held)
    if here.has_file(job.id):
        from prolog_epilog.sharing import tenancy  # noqa: PLC0415 - an earlier run of it shared, or should have

        tenancy.forget(job, here)
    if not (here.config.chain_prolog or here.config.chain_epilog):
        return 0
    gpus = indices_of(job, berth, here, held)
    if here.config.chain_epilog and gpus and berth is None and held is not None:
        # Its Extra does not tell them, and Slurm forgets them before the Epilog.
        remembered.keep(job, gpus, here)
    return run_chain(here.config.chain_prolog, job, gpus, here)


def _refuse(job: NodeJob, here: Here, problem: ExtraError, *, hold: bool = False, again: bool = False) -> int:
    from prolog_epilog.sharing import tenancy  # noqa: PLC0415 - most jobs share nothing

    here.say(numbered(problem))
    return tenancy.refuse(job, here, str(problem), hold=hold, again=again)
