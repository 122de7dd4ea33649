"""berth release: undo the pins of waiting jobs, so that Slurm chooses for them as if Berth were not there."""

import argparse
import sys
from typing import Any

from policy.errors import BerthError, SlurmError, UsageError


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("release", help="give waiting jobs back to Slurm (admins)")
    parser.add_argument("jobs", nargs="*", metavar="JOBID", help="jobs to give back")
    parser.add_argument("--all", action="store_true", help="all waiting jobs that Berth pinned")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Release jobs one by one; one that fails does not keep the others."""
    from policy.slurm.command import CommandGateway  # noqa: PLC0415 - keeps `berth --help` fast

    if bool(options.jobs) == options.all:
        raise UsageError("berth release takes job numbers, or --all")
    wrong = [word for word in options.jobs if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a job's number")
    gateway = CommandGateway()
    job_ids = gateway.pinned_jobs() if options.all else [int(word) for word in options.jobs]
    released, failed = 0, 0
    for job_id in job_ids:
        try:
            if gateway.release(job_id, "given back to Slurm by berth release"):
                released += 1
            elif not options.all:
                sys.stderr.write(f"berth: job {job_id} has no pin of Berth\n")
        except SlurmError as problem:
            if options.all and "only the place of a waiting job" in str(problem):
                continue  # it started a moment ago
            failed += 1
            sys.stderr.write(f"berth: error: {problem}\n")
    sys.stdout.write(f"{released} job{'' if released == 1 else 's'} given back to Slurm\n")
    if failed:
        raise BerthError(f"{failed} of {len(job_ids)} jobs keep their place")
    return 0
