# SPDX-License-Identifier: Apache-2.0
"""The command `berth release`, which removes pins of waiting jobs, so that Slurm chooses for them as without Berth."""

import argparse
import re
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from policy.cli.output import say, tell
from policy.formats.errors import BerthError, UsageError
from policy.slurm.interface import Gateway

_BY_HAND = "given back to Slurm by berth release"
_FOR_NOW = "given back to Slurm until berthd runs again"
_STARTED = re.compile(
    "only the place of a waiting job|no longer pending|not supported on this system|"
    "already completing|already finished|Invalid job id"
)
"""Matches the errors about a job that started, or was cancelled, since it was listed."""
_COMES_BACK_WITHIN = 30.0
"""Seconds for which `berth release --all` waits for jobs that end, if Slurm may requeue them by exit status."""
_LOOK_EVERY = 0.5
_NAME = re.compile(r"[1-9][0-9]*(?:_[0-9]+)?", re.ASCII)


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("release", help="give waiting jobs back to Slurm (admins)")
    parser.add_argument(
        "jobs", nargs="*", metavar="JOBID", help="jobs to give back; an array's number is all its tasks, 7_3 is one"
    )
    parser.add_argument("--all", action="store_true", help="all waiting jobs that Berth pinned")
    parser.add_argument(
        "--for-now", action="store_true", help="with --all: until a berthd runs again, which gives them places anew"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Releases jobs one by one; a failure does not stop the others."""
    from policy.slurm.gateways import open_gateway  # noqa: PLC0415 - keeps `berth --help` fast

    if bool(options.jobs) == options.all:
        raise UsageError("berth release takes job numbers, or --all")
    if options.for_now and not options.all:
        raise UsageError(
            "--for-now goes with --all: a berthd that runs would give single jobs their places back at once"
        )
    wrong = [word for word in options.jobs if not _NAME.fullmatch(word)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a job's number, nor a task's such as 7_3")
    with closing(open_gateway("auto")) as gateway:
        if options.for_now and not gateway.in_control():
            # A standby's berthd has pinned nothing: these are the pins of the berthd beside the active slurmctld.
            why = "nothing given back: the active slurmctld does not run on this host, or does not answer"
            tell(options, {"released": 0, "kept": []}, why)
            return 0
        _release(gateway, options)
    return 0


def _release(gateway: Gateway, options: argparse.Namespace) -> None:
    job_ids = gateway.pinned_jobs() if options.all else _named(gateway, options.jobs)
    released, failed = _give_back(gateway, job_ids, options)
    if options.all and not options.for_now:
        more, kept = _when_they_come_back(gateway, failed, options)
        released, failed = released + more, failed | kept
    values = {"released": released, "kept": sorted(map(str, failed))}
    tell(options, values, f"{released} job{'s'[: released != 1]} given back to Slurm")
    if failed:
        raise BerthError(f"{len(failed)} of {released + len(failed)} jobs keep their place")


def _give_back(
    gateway: Gateway, job_ids: Iterable[int | str], options: argparse.Namespace
) -> tuple[int, set[int | str]]:
    """Releases these jobs; returns the number of released ones, and those that wait and keep their place."""
    reason = _FOR_NOW if options.for_now else _BY_HAND
    released, failed = 0, set[int | str]()
    for job_id in job_ids:
        try:
            if gateway.release(job_id, reason, for_now=options.for_now):
                released += 1
            elif not options.all:
                say(f"berth: job {job_id} has no pin of Berth", 711)
        except BerthError as problem:
            if options.all and _STARTED.search(str(problem)):
                continue  # it started a moment ago, or ends
            failed.add(job_id)
            say(f"berth: error: job {job_id} keeps its place: {problem}", 607)
    return released, failed


def _when_they_come_back(
    gateway: Gateway, failed: set[int | str], options: argparse.Namespace
) -> tuple[int, set[int | str]]:
    """Releases the jobs that Slurm requeues once their Epilogs have ended.

    By RequeueExit an ended job is requeued only then, and until then Slurm takes no change of it. If no exit status
    requeues jobs, there is nothing to wait for.
    """
    config, released = gateway.config(), 0
    if all(config.get(key, "(null)") in {"", "(null)"} for key in ("RequeueExit", "RequeueExitHold")):
        return 0, set()
    until, told = time.monotonic() + _COMES_BACK_WITHIN, False
    while left := [job_id for job_id in gateway.pinned_jobs() if job_id not in failed]:
        if time.monotonic() >= until:
            names = ", ".join(map(str, left[:10]))
            say(f"berth: error: jobs {names} still end on their nodes, and keep their place if they are requeued", 727)
            return released, set(left)
        if not told:
            say(f"berth: {len(left)} jobs end on their nodes and may be requeued by RequeueExit: waiting for them", 727)
            told = True
        time.sleep(_LOOK_EVERY)
        more, kept = _give_back(gateway, left, options)
        released, failed = released + more, failed | kept
    return released, set()


def _named(gateway: Gateway, names: Iterable[str]) -> list[int | str]:
    """Returns the records that the names stand for; each task that has split off an array has its own record."""
    found: list[int | str] = []
    for name in names:
        pinned = gateway.pinned_jobs(name)
        if not pinned and "_" in name:
            raise BerthError(f"task {name} does not wait with a pin of Berth")
        # For a number without pins, the record itself tells the reason.
        found += pinned or [int(name)]
    return list(dict.fromkeys(found))
