# SPDX-License-Identifier: Apache-2.0
"""The command `berth report`, which reports on past GPU jobs from Slurm's accounting; Berth need not have run then."""

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from policy.cli.output import as_json, print_json
from policy.formats.errors import SlurmError, UsageError
from policy.formats.messages import readable
from policy.formats.slurm_syntax.moments import moment_of
from policy.report.rows import COLUMNS, read
from policy.report.site import Site
from policy.report.tally import Period, Tally
from policy.retry.rules import shipped_rules
from policy.site.config import config_path, fabric_file, load
from policy.site.step_records import reports_of
from policy.slurm.accounting import days, opened
from policy.slurm.by_command import text
from policy.slurm.by_command.command import run_command
from topology.calibrate.steps import JobReport
from topology.errors import TopologyError
from topology.files import load_directory

_DAY_S = 86_400.0


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `report` to the parser of `berth`."""
    report = subparsers.add_parser(
        "report", help="report on finished GPU jobs: waits, places, use and failures, from sacct"
    )
    report.add_argument(
        "--since", metavar="TIME", help="as for sacct: 2026-11-01T08:30, now-7days (default: 30 days ago)"
    )
    report.add_argument("--until", metavar="TIME", help="the end of that time (default: now)")
    report.add_argument(
        "--from", dest="source", metavar="FILE", help="a file of berth collect, or lines of sacct; -: stdin"
    )
    report.add_argument("--fabric", metavar="FILE", help="topology.conf or .yaml (default: beside slurm.conf)")
    report.add_argument("--gpus-per-node", type=int, metavar="N", help="where Slurm's nodes are not to be asked")
    report.add_argument("--json", metavar="FILE", help="write all figures; - for standard output")
    report.add_argument("--html", metavar="FILE", help="write a page with pictures")
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from policy.report.page import page  # noqa: PLC0415
    from policy.report.text import text  # noqa: PLC0415

    until = moment(args.until) if args.until else float("inf") if args.source else time.time()
    since = moment(args.since) if args.since else 0.0 if args.source else until - 30 * _DAY_S
    if since >= until:
        raise UsageError("--since must lie before --until")
    tally = Tally(_site(args), shipped_rules(), [] if args.source else _steps())
    if args.source:
        _from_file(args.source, tally, Period(since, until))
    else:
        _from_sacct(tally, since, until)
    found = tally.figures(Period(since, until))
    if args.html:
        _write(args.html, page(found))
    if args.json == "-":
        print_json(found)
        return 0
    if args.json:
        _write(args.json, as_json(found))
    sys.stdout.write(readable(text(found)))
    return 0


def past(days: int, gpus: Mapping[str, int], fabric: str | None) -> dict[str, Any]:
    """Returns figures of the last days, and as `text` tables on waits and places; raises SlurmError without sacct."""
    from policy.report.text import short  # noqa: PLC0415

    until = time.time()
    since = until - days * _DAY_S
    tally = Tally(Site(gpus, _groups(fabric), 0), shipped_rules())
    _from_sacct(tally, since, until)
    found = tally.figures(Period(since, until))
    return {key: found[key] for key in ("waits", "places", "counts", "worth")} | {"text": short(found)}


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"{name} cannot be written: {problem.strerror}; name another file") from problem


def moment(words: str) -> float:
    """Reads a time as sacct does."""
    try:
        return moment_of(words, time.time())
    except ValueError:
        raise UsageError(f"{words!r} is no time; write it as for sacct, such as 2026-11-01 or now-7days") from None


def _from_file(name: str, tally: Tally, period: Period) -> None:
    try:
        with nullcontext(sys.stdin) if name == "-" else opened(Path(name)) as lines:
            tally.add(read(lines), period, period.until)
    except OSError as problem:
        raise UsageError(
            f"{name} cannot be read: {problem.strerror}; name a file that berth collect wrote"
        ) from problem


def _from_sacct(tally: Tally, since: float, until: float) -> None:
    for begin, end, lines in days(since, until, COLUMNS):
        tally.add(read(lines), Period(begin, end), until)


def _site(args: argparse.Namespace) -> Site:
    """Returns the nodes of today, and the groups that join them."""
    gpus = _gpus_of_nodes() if not args.gpus_per_node else {}
    return Site(gpus, _groups(args.fabric), args.gpus_per_node or 0)


def _steps() -> list[JobReport]:
    """Returns the step times that berthd has recorded; empty if there are none, or this user may not read them."""
    record = load(config_path()).steps
    try:
        reports = reports_of(record) if record and record.exists() else ()
    except (OSError, TopologyError):
        reports = ()
    return [one for one in reports if isinstance(one, JobReport)]


def _gpus_of_nodes() -> dict[str, int]:
    try:
        printed = run_command("scontrol", "show", "node", "--oneliner", "--details").decode("utf-8", "replace")
    except SlurmError:
        return {}
    return {node.name: node.gpus + node.loose for node in text.nodes(printed) if node.gpus + node.loose}


def _groups(fabric: str | None) -> dict[str, dict[str, str]]:
    """Returns NVLink domains from Berth's topology files, if there are any, and leaves and pods from Slurm's file."""
    from topology.providers import slurm_fabric  # noqa: PLC0415

    config = load(config_path())
    machines = load_directory(config.topology_dir, _say) if config.topology_dir.is_dir() else {}
    domains = {node: machine.domain for node, machine in machines.items() if machine.domain}
    path = fabric_file(fabric or config.fabric)
    if path is None:
        return {"nvlink": domains}
    leaves = slurm_fabric.read(path).leaves
    leaf = {node: one.name for one in leaves for node in one.nodes}
    pod = {node: one.pod for one in leaves for node in one.nodes if one.pod}
    return {"nvlink": domains, "leaf": leaf, "pod": pod}


def _say(problem: object) -> None:
    sys.stderr.write(f"berth: {problem}\n")
