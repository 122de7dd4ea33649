# SPDX-License-Identifier: Apache-2.0
"""The command `berth queue`: squeue's columns for jobs with GPUs, and their level, planned place, start and reason."""

import argparse
import os
import pwd
import time
from collections.abc import Mapping
from typing import Any

from policy.cli import ask
from policy.cli.listing import Column, add_list_options, columns_of, list_parser, moment, print_list, span
from policy.cli.output import say
from policy.formats import hostlist
from policy.formats.errors import UsageError
from policy.site.config import config_path, load
from policy.site.overview import hang_text, idle_text, user_of

_USUAL = (
    *("jobid", "partition", "name", "user", "st", "time", "nodes", "nodelist", "gpus"),
    *("level", "planned", "start", "because"),
)
_SHORT = {"PENDING": "PD", "RUNNING": "R", "SUSPENDED": "S", "COMPLETING": "CG", "CONFIGURING": "CF", "STOPPED": "ST"}


def register(commands: Any) -> None:
    """Adds the command."""
    parser = list_parser(
        commands, "queue", help="jobs with GPUs: where they run or will run, from when on, and why they wait"
    )
    parser.add_argument("-u", "--user", metavar="NAMES", help="only jobs of these users, by name or number")
    parser.add_argument("--me", action="store_true", help="only your own jobs")
    parser.add_argument("-p", "--partition", metavar="NAMES", help="only jobs of these partitions")
    parser.add_argument("-t", "--states", metavar="STATES", help="only jobs in these states, such as PD or RUNNING")
    parser.add_argument("-j", "--jobs", metavar="JOBIDS", help="only these jobs")
    add_list_options(parser, COLUMNS, _USUAL)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the queue, in the order in which jobs are planned."""
    columns = columns_of(options.format, COLUMNS)
    keep = _filter(options)
    found = ask.queue(load(config_path()))
    jobs = [job for job in found["jobs"] if keep(job)]
    code = print_list(options, {**found, "jobs": jobs}, jobs, columns)
    if found["left_out"] and not options.json:
        say(f"berth: {found['left_out']} more jobs wait; squeue lists all", 712)
    return code


def _filter(options: argparse.Namespace) -> Any:
    users = {os.getuid()} if options.me else None
    if options.user:
        users = (users or set()) | {_uid(name) for name in options.user.split(",")}
    partitions = set(options.partition.split(",")) if options.partition else None
    states = {_state(word) for word in options.states.split(",")} if options.states else None
    jobs = set(options.jobs.split(",")) if options.jobs else None

    def keep(job: Mapping[str, Any]) -> bool:
        return (
            (users is None or job["user_id"] in users)
            and (partitions is None or not partitions.isdisjoint(job["partition"].split(",")))
            and (states is None or job["state"] in states)
            and (jobs is None or not jobs.isdisjoint({name_of(job), str(job["id"]), str(job.get("array", ""))}))
        )

    return keep


def _uid(name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(f"{name!r} is no user of this host; -u takes names or numbers of users") from None


def _state(word: str) -> str:
    long = {short: state for state, short in _SHORT.items()}
    name = word.strip().upper()
    return long.get(name, name)


def name_of(job: Mapping[str, Any]) -> str:
    """Returns a job's name as squeue writes it: 7, 7_3, 7_[3-5]."""
    if job.get("tasks"):
        return f"{job.get('array') or job['id']}_[{job['tasks']}]"
    return f"{job['array']}_{job['task']}" if job.get("array") and "task" in job else str(job["id"])


def place_of(job: Mapping[str, Any]) -> str:
    """Returns a waiting job's planned place: nodes and the GPUs on each of them."""
    if "planned" not in job:
        return ""
    gpus = hostlist.fold_numbers(tuple(job["planned"]["gpus"]))
    return f"{job['planned']['nodes']}:{gpus}"


def _start(job: Mapping[str, Any]) -> str:
    if job["state"] != "PENDING":
        return moment(job["start"])
    start = job.get("planned", {}).get("start")
    return "now" if start == 0 else moment(start)


def _ran(job: Mapping[str, Any]) -> str:
    return "0:00" if job["start"] is None else span(max(0, int(time.time()) - job["start"]))


def _because(job: Mapping[str, Any]) -> str:
    if "hangs" in job:
        return hang_text(job["hangs"], time.time())
    if "idle" in job:
        return idle_text(job, time.time())
    return f"{job['because']}: {job.get('because_text', '')}" if "because" in job else ""


def _level(job: Mapping[str, Any]) -> str:
    """Returns the level on which a waiting job insists, else the level reached."""
    if job["state"] == "PENDING" and job.get("insists_until", 0) > time.time():
        return f"{job['insists']}@{span(job['insists_until'] - time.time())}"
    return str(job.get("level", ""))


COLUMNS = {
    "jobid": Column("JOBID", name_of, right=True),
    "partition": Column("PARTITION", lambda job: str(job["partition"])),
    "name": Column("NAME", lambda job: str(job["name"]), width=16),
    "user": Column("USER", lambda job: user_of(job["user_id"])),
    "account": Column("ACCOUNT", lambda job: str(job["account"])),
    "st": Column("ST", lambda job: _SHORT.get(job["state"], job["state"][:2])),
    "state": Column("STATE", lambda job: str(job["state"])),
    "time": Column("TIME", _ran, right=True),
    "limit": Column(
        "TIME_LIMIT", lambda job: span(job["limit"]) if job["limit"] is not None else "UNLIMITED", right=True
    ),
    "nodes": Column("NODES", lambda job: str(job["node_count"]), right=True),
    "nodelist": Column(
        "NODELIST(REASON)", lambda job: f"({job['reason']})" if job["state"] == "PENDING" else str(job["nodes"])
    ),
    "gpus": Column(
        "GPUS", lambda job: f"{job['gpus']}{':' + str(job['share']) + '%' if job.get('share') else ''}", right=True
    ),
    "tier": Column("TIER", lambda job: job.get("tier", "exclusive")),
    "level": Column("LEVEL", _level),
    "planned": Column("PLANNED", place_of),
    "start": Column("START", _start),
    "because": Column("BECAUSE", _because),
    "why": Column("WHY", lambda job: job.get("why", "")),
    "priority": Column("PRIORITY", lambda job: str(job["priority"]), right=True),
    "submitted": Column("SUBMIT_TIME", lambda job: moment(job["submitted"])),
    "end": Column("END_TIME", lambda job: moment(job["end"])),
}
