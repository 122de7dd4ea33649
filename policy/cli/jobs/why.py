# SPDX-License-Identifier: Apache-2.0
"""The command `berth why JOBID`, which prints Berth's decision for a job in one sentence, and with `-v` all of it.

Rows follow in this order: the jobs ahead of it, why it is slow, hangs or idles, and why it failed.

`--slow` prints what made a job slow (policy/cli/jobs/why_slow.py).
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from policy.cli import ask
from policy.cli.output import print_json, print_table
from policy.formats.errors import BerthError, ConfigError, SlurmError, UsageError
from policy.formats.job_plan import JobPlan, of_text
from policy.formats.outcome import FAILED
from policy.formats.plan_fields import ALL_REDUCE, HELPS, IDLE_END, preflight_of
from policy.formats.slurm_syntax import array_tasks
from policy.plan.answer.explain import rows, sentence
from policy.retry.rules import shipped_rules
from policy.site.ahead import ahead_rows
from policy.site.config import Config, config_path, load
from policy.slurm.by_command import job_json
from policy.slurm.by_command.command import CommandGateway, run_command

RUNNING = ("slow", "hangs", "idle")
"""The keys of a running job's rows, in their order."""
_NAME = re.compile(r"[1-9][0-9]*(?:[_+][0-9]+)?", re.ASCII)


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("why", help="why a job got, or waits for, its GPUs")
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOBID",
        help="a job's number; 7_3 is a task of an array, 7+1 a part of a heterogeneous job (default: your last job)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="all that is known of the decision, row by row")
    parser.add_argument("--slow", action="store_true", help="what made the job slow: a rank, a GPU, or its program")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        type=Path,
        help="with --slow: step times that the job wrote (docs/admin/stragglers.md)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints one job's decision."""
    options.job = options.job or _last_job()
    if not _NAME.fullmatch(options.job):
        raise UsageError(f"{options.job!r} is not a job's number; berth why takes one, such as 1234, 7_3 or 7+1")
    if options.source and not options.slow:
        raise UsageError("--from needs --slow")
    if options.slow:
        from policy.cli.jobs.why_slow import run_slow  # noqa: PLC0415 - keeps `berth --help` fast

        return run_slow(options)
    job_id = number_of(options.job)
    state, plan, ahead, running = look_up(job_id)
    if plan is None:
        raise BerthError(f"job {job_id} has no decision of Berth: it asked for no GPUs, or came past the plugin")
    try:
        failure = _failure_now(job_id, state, plan)
    except SlurmError as problem:
        # berthd has sent the decision; without Slurm's commands, nothing more is known here.
        failure = [("failed", f"the cause is not known here: {problem}")]
    if options.json:
        told = {"sentence": sentence(job_id, state, plan, failure), "decision": _typed(plan), "ahead": ahead}
        print_json({"job": job_id, "slurm_state": state, **told, **running, "failure": dict(failure)})
        return 0
    if not options.verbose:
        print(sentence(job_id, state, plan, failure))
    now = [(name, text) for name, text in running.items() if text]
    now += [("ends" if state == "RUNNING" else "ended", plan[IDLE_END])] if IDLE_END in plan else []
    print_table([*(rows(job_id, state, plan) if options.verbose else ()), *ahead_rows(ahead), *now, *failure])
    return 0


def _last_job() -> str:
    """Returns the number of the caller's last job in Slurm's queue; ended jobs stay there for some minutes."""
    shown = run_command("squeue", "--me", "--noheader", "--states=all", "--sort=-V", "--format=%A").split()
    if not shown:
        raise UsageError("none of your jobs is in Slurm's queue; name one: berth why JOBID")
    return shown[0].decode("ascii", "replace")


def number_of(name: str, run: Callable[..., bytes] | None = None) -> int:
    """Returns a job's number; for a task or a part, Slurm is asked for it.

    Tasks that wait may share the number of the whole array.
    """
    if name.isdigit():
        return int(name)
    found = job_json.decode((run or run_command)("scontrol", "show", "job", name, "--json"))
    chosen = [job for job in found if name in {job.name, job.part}]
    if not chosen and (task := name.partition("_")[2]):
        # Later releases show all records of an array, whichever task is asked for.
        chosen = [job for job in found if array_tasks.waits(int(task), job.array_task_string)]
    if not chosen:
        raise SlurmError(f"job {name} is not known to Slurm (any more); sacct may still know it")
    return chosen[0].job_id


class Told(NamedTuple):
    """A job's state and plan, the jobs ahead of it while it waits (policy/site/ahead.py), and texts while it runs."""

    state: str
    plan: JobPlan | None
    ahead: Mapping[str, Any] | None = None
    running: Mapping[str, str | None] = dict.fromkeys(RUNNING)


def look_up(job_id: int) -> Told:
    """Returns what is known of a job: from berthd if it answers users, else from Slurm's commands."""
    without = ""
    try:
        config = load(config_path())
        if config.users_hosts:
            told = ask.question(config, f"why job={job_id}")
            plan, ahead = of_text(told.get("segment", "")), json.loads(told.get("ahead", "null"))
            return Told(told["state"], plan, ahead, {name: told.get(name) for name in RUNNING})
    except BerthError as problem:
        # Slurm has the same data, if its commands exist and may be used.
        without = str(problem)
    try:
        job = CommandGateway().job(job_id)
    except SlurmError as problem:
        raise SlurmError(f"{problem}; {without}" if without else str(problem)) from None
    return Told(job.state, of_text(job.admin_comment))


def _failure_now(job_id: int, state: str, plan: JobPlan) -> list[tuple[str, str]]:
    """Returns rows on why a job has just failed, or its pre-flight if that has ended the job."""
    from policy.cli.jobs.why_failed import failure_rows, preflight_rows  # noqa: PLC0415
    from policy.slurm.outcomes import outcome  # noqa: PLC0415

    if state == "CANCELLED" and (first := preflight_of(plan)) is not None:
        return preflight_rows(outcome(first), shipped_rules())
    return failure_rows(outcome(job_id), shipped_rules(), _other_systems()) if state in FAILED else []


def _other_systems() -> tuple[str, ...]:
    """Returns the words in comments that name other systems; the defaults if berth.conf cannot be read."""
    try:
        return load(config_path()).other_retries
    except ConfigError:
        return Config().other_retries


_NAMES = {"gbps": "min_gbps", "sum": "sum_gbps", "cut": "all_reduce_gbps"}
_NUMBERS = (
    *("n", "k", "cpus", "mem", "at", "start", "pins", "wait", "until", "share", "gpu_mem", "granted", "degraded"),
    *("parked", "upgrade", "evicted", "move_until", "move_for", "fail_at", "again", "tried_before"),
)
_TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys(("gbps", "sum"), float),
    "cut": lambda text: round(ALL_REDUCE * float(text), 1),
    "nodes": lambda text: text.split(","),
    "gpus": lambda text: [int(gpu) for gpu in text.split(",")],
    "seats": lambda text: text == "1",
}


def _typed(plan: JobPlan) -> dict[str, Any]:
    flags = dict(plan.flags)
    texts = {key: text for key, text in plan.texts.items() if not key.startswith("f.")}
    typed = {_NAMES.get(key, key): _TYPES.get(key, str)(text) for key, text in texts.items()}
    typed |= {"flags": flags} if flags else {}
    return {**typed, "helps": dict(plan.get(HELPS, ()))} if HELPS in plan else typed
