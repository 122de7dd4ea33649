"""What happens on a node before a job: the site's own Prolog, and the job's share of its GPUs."""

from prolog_epilog import extra
from prolog_epilog.errors import ExtraError
from prolog_epilog.here import Here, berth_of, indices_of, run_chain
from prolog_epilog.job import Job


def run(job: Job, here: Here) -> int:
    """The Prolog's exit status: not 0 takes the node out of service."""
    try:
        berth = berth_of(job, here)
    except ExtraError as problem:
        here.say(str(problem))
        berth = None
        if extra.asks_share(job.extra):
            from prolog_epilog import tenancy  # noqa: PLC0415 - most jobs share nothing

            return tenancy.refuse(job, here, str(problem))
    if (berth is not None and berth.is_shared) or ((berth is not None or job.indices) and here.has_books()):
        from prolog_epilog import tenancy  # noqa: PLC0415 - most jobs share nothing

        if berth is not None and berth.is_shared:
            return tenancy.begin(job, berth, here)
        tenancy.clear(job, berth, here)
    if not here.config.chain_prolog:
        return 0
    return run_chain(here.config.chain_prolog, job, indices_of(job, berth, here), here)
