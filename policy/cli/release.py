"""berth release: undo the pins of waiting jobs, so that Slurm chooses for them as if Berth were not there."""

import argparse
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from policy.errors import BerthError, SlurmError, UsageError

if TYPE_CHECKING:
    from policy.slurm.command import CommandGateway

_NAME = re.compile(r"[1-9][0-9]*(?:_[0-9]+)?", re.ASCII)


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("release", help="give waiting jobs back to Slurm (admins)")
    parser.add_argument(
        "jobs", nargs="*", metavar="JOBID", help="jobs to give back; an array's number is all its tasks, 7_3 is one"
    )
    parser.add_argument("--all", action="store_true", help="all waiting jobs that Berth pinned")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Release jobs one by one; one that fails does not keep the others."""
    from policy.slurm.command import CommandGateway  # noqa: PLC0415 - keeps `berth --help` fast

    if bool(options.jobs) == options.all:
        raise UsageError("berth release takes job numbers, or --all")
    wrong = [word for word in options.jobs if not _NAME.fullmatch(word)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a job's number, nor a task's such as 7_3")
    gateway = CommandGateway()
    job_ids = gateway.pinned_jobs() if options.all else _named(gateway, options.jobs)
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


def _named(gateway: "CommandGateway", names: Iterable[str]) -> list[int | str]:
    """What some names mean: of an array each task that has split off has a record of its own."""
    found: list[int | str] = []
    for name in names:
        pinned = gateway.pinned_jobs(name)
        if not pinned and "_" in name:
            raise BerthError(f"task {name} does not wait with a pin of Berth")
        # Of a number without pins the record itself tells why.
        found += pinned or [int(name)]
    return list(dict.fromkeys(found))
