"""The command `berth efficiency JOBID`: what a finished job made of its GPUs, from what was recorded of it."""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from policy.cli.listing import moment, span
from policy.cli.output import print_json, print_table
from policy.formats.errors import BerthError, SlurmError, UsageError
from policy.formats.plan_fields import ALL_REDUCE
from policy.report.rows import COLUMNS, JobRun, read
from policy.site.config import Config, config_path, load
from topology.calibrate.steps import JobReport, Report

_NAME = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,9})?", re.ASCII)
_GOES_ON = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"})


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "efficiency", help="what a finished job made of its GPUs, and what it lost by its place"
    )
    parser.add_argument("job", metavar="JOBID", help="the number of a job that has ended; 7_3 is a task of an array")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints what was recorded of one job, and what was not."""
    from policy.report.efficiency import efficiency, neighbours_of  # noqa: PLC0415 - keeps `berth --help` fast

    if not _NAME.fullmatch(options.job):
        raise UsageError(f"{options.job!r} is not a job's number; berth efficiency takes one, such as 1234 or 7_3")
    found = last_run(options.job)
    config = load(config_path())
    others = _beside(found) if {"share", "tier"} & found.said.keys() else []
    told = efficiency(
        found,
        neighbours=neighbours_of(found, others),
        steps=report_of(step_reports(config), found.id),
        scores=scores_of(config, found.said.get("f.app-class") or "compute"),
        links=_links(config, found),
    )
    if options.json:
        print_json(told)
    else:
        print_table(rows(told))
    return 0


def rows(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the figures as rows for people."""
    found = [
        ("job", f"{told['job']} ({told['state'].lower()})"),
        ("ran", f"{span(told['ran_s'])} on {told['gpus']} GPUs of {told['nodes'] or 'no node'}"),
        ("waited", span(told["waited_s"])),
        ("GPU use", "not recorded" if told["gpu_use"] is None else f"{told['gpu_use']:.0%} of its GPUs' time"),
    ]
    if (steps := told["steps"]) is not None:
        slowest = f", {steps['slowest_ms']:g} ms on {steps['slowest_gpu']}" if steps["ranks"] > 1 else ""
        found.append(("steps", f"{steps['median_ms']:g} ms is the median of {steps['ranks']} ranks{slowest}"))
    if told["shared_as"]:
        beside = f"job {', '.join(told['neighbours'])}" if told["neighbours"] else "no job that you may see"
        found.append(("shared", f"as {told['shared_as']}, beside {beside}"))
    if told["slowest_score"] is not None:
        found.append(("slowest GPU", f"{told['slowest_gpu']}, score {told['slowest_score']:g}"))
    if told["all_reduce_gbps"] is not None:
        found.append(("links", f"all-reduce about {told['all_reduce_gbps']:g} GB/s on a node"))
    better = told["better_place"] or ["nothing that was recorded speaks for another one"]
    found += [("better place", text) for text in better]
    return [*found, *(("not known", text) for text in told["unknown"])]


def last_run(name: str) -> JobRun:
    """Returns the last run of a job that has ended, from the accounting."""
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    answer = run_command("sacct", "-DP", "-j", name, "-o", ",".join(COLUMNS)).decode("utf-8", "replace")
    runs = [one for one in read(answer.splitlines()) if one.start is not None or one.state == "PENDING"]
    if not runs:
        raise SlurmError(f"job {name} is not in the accounting; berth efficiency reads it from there, by sacct")
    if len({one.id for one in runs}) > 1:
        raise UsageError(f"{name} is an array; name one of its tasks, such as {name}_0")
    if runs[-1].state in _GOES_ON:
        raise BerthError(f"job {name} has not ended; berth why {name} tells of its place until then")
    return runs[-1]


def _beside(run: JobRun) -> list[JobRun]:
    """Returns the jobs on its nodes while it ran, as far as Slurm shows them to this user."""
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    if run.start is None or run.end is None or not run.nodes:
        return []
    when = ["-S", moment(run.start), "-E", moment(run.end)]
    words = ["sacct", "-aDP", "-N", ",".join(run.nodes), *when, "-o", ",".join(COLUMNS)]
    return list(read(run_command(*words).decode("utf-8", "replace").splitlines()))


def step_reports(config: Config) -> Sequence[Report]:
    """Returns the record of step times; empty where there is none, or this user may not read it."""
    from policy.site.step_records import reports_of  # noqa: PLC0415
    from topology.errors import TopologyError  # noqa: PLC0415

    try:
        return reports_of(config.steps) if config.steps else ()
    except (TopologyError, OSError):
        return ()


def report_of(reports: Sequence[Report], job: str) -> JobReport | None:
    """Returns the last report of a job."""
    return next((one for one in reversed(reports) if isinstance(one, JobReport) and one.job == job), None)


def scores_of(config: Config, app_class: str) -> dict[tuple[str, int], float] | None:
    """Returns the scores for a class; None where there is no table, or this user may not read it."""
    from topology.errors import TopologyError  # noqa: PLC0415
    from topology.scores import load  # noqa: PLC0415

    if config.scores is None:
        return None
    try:
        table = load(config.scores)
    except TopologyError:
        return None
    return {(one.node, one.position): one.score for one in table if one.app_class == app_class}


def _links(config: Config, run: JobRun) -> tuple[float, float] | None:
    """Returns GB/s of an all-reduce on its GPUs of one node, and on the best as many there."""
    from policy.report.efficiency import gpus_of  # noqa: PLC0415
    from topology import files  # noqa: PLC0415
    from topology.errors import TopologyError  # noqa: PLC0415

    own = gpus_of(run)
    if not own:
        return None
    node = own[0][0]
    mask = sum(1 << position for name, position in own if name == node)
    if mask.bit_count() < 2:
        return None
    try:
        from topology.sets.subsets import SubsetTable  # noqa: PLC0415 - needs numpy, and networkx

        machine = files.load(config.topology_dir / f"{node}.json")
        table = SubsetTable.of(machine)
        had = table.best(mask, mask.bit_count())
        best = table.best((1 << machine.size) - 1, mask.bit_count())
    except (TopologyError, ImportError):
        return None
    if had is None or best is None:
        return None
    return round(ALL_REDUCE * had.cut_gbps, 1), round(ALL_REDUCE * best.cut_gbps, 1)
