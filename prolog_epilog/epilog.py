# SPDX-License-Identifier: Apache-2.0
"""The Epilog: takes a job's share back, then runs the site's own Epilog.

It may be called twice, after a Prolog that failed, and after a restart of the node: it acts on what it finds.
"""

from prolog_epilog import given, remembered
from prolog_epilog.errors import Disagreement, ExtraError
from prolog_epilog.here import Here, indices_of, run_chain
from prolog_epilog.job import extra
from prolog_epilog.job.job import NodeJob


def run(job: NodeJob, here: Here) -> int:
    """Runs the Epilog; an exit status other than 0 takes the node out of service."""
    if here.config.jobs_for_dcgm or here.config.jobs_for_jobstats:
        from prolog_epilog import monitoring  # noqa: PLC0415 - few sites want it

        monitoring.leave(job, here)
    if job.ended_badly:
        from prolog_epilog.failed import aftermath  # noqa: PLC0415 - most jobs end well

        aftermath.leave_behind(job, here)
    if here.has_file(job.id) or extra.asks_share(job.extra):
        from prolog_epilog.sharing import tenancy  # noqa: PLC0415 - most jobs share nothing

        return tenancy.end(job, here)
    if not here.config.chain_epilog:
        return 0
    gpus = remembered.read(job, here)
    code = run_chain(here.config.chain_epilog, job, _gpus(job, here) if gpus is None else gpus, here)
    if not code:
        remembered.forget(job, here)
    return code


def _gpus(job: NodeJob, here: Here) -> tuple[int, ...]:
    """Returns the GPUs of a job of which the Prolog kept nothing, as far as they can be known at its end."""
    berth, held = None, None
    try:
        berth, held = given.look(job, here, everywhere=True)
    except Disagreement:
        # Other jobs use the GPUs that it ran on, too.
        return ()
    except ExtraError:
        pass
    if berth is None and held is not None and held.runs:
        # The job has begun anew: Slurm shows the GPUs of that run, and not of the one that ends here.
        return job.indices
    return indices_of(job, berth, here, held)
