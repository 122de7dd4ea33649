# SPDX-License-Identifier: Apache-2.0
"""The command `berth simulate`, which tries policies on a trace: a published one or a cluster's own accounting."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from policy.formats.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.simulate.report.summary import Summary
    from policy.simulate.study import Study

_POLICIES = {
    "slurm": ("slurm", "packed", "berth"),
    "berthd": ("slurm", "berth"),
    "pal-rounds": ("packed-sticky", "packed", "pm-first", "pal"),
}
"""The policies that are compared if none is named."""

_EXAMPLES = """\
what would Berth have done last month?
  sacct -aPX -S 2026-10-01 -E 2026-11-01 \\
    -o JobID,User,Account,JobName,Submit,Eligible,Start,End,ElapsedRaw,State,AllocTRES,ReqTRES,Timelimit,NNodes > oct
  berth simulate oct --nodes 64 --gpus-per-node 8 --report oct.html

More in docs/research/simulate.md.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `simulate` to the parser of `berth`."""
    parser = subparsers.add_parser(
        "simulate",
        help="play a list of jobs on a simulated cluster, with one or more policies",
        description="Play a trace of jobs on a simulated cluster, once for each policy, and compare.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser)
    _add_cluster(parser.add_argument_group("cluster"))
    _add_rules(parser.add_argument_group("scheduling"))
    _add_output(parser.add_argument_group("output"))
    _add_runs(parser.add_argument_group("many runs"))
    parser.set_defaults(run=run)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="trace files (.gz too), several as one; - for stdin")
    parser.add_argument(
        "--study",
        action="append",
        default=[],
        metavar="FILE",
        help="options in a file, and all that are too rare for the command line; repeatable, the last one counts",
    )
    parser.add_argument(
        "--mode",
        choices=("slurm", "berthd", "pal-rounds"),
        help="slurm: Slurm's scheduling (default); berthd: with berthd's own code and the time that each step takes; "
        "pal-rounds: the model of PAL's artifact",
    )
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        metavar="NAME",
        help="repeatable: berth, slurm, slurm-tree, packed, pm-first, pal, random, pinned-random, a site's own, or "
        "FILE.py:CLASS; packed-sticky and random-sticky leave running jobs where they are",
    )
    parser.add_argument(
        "--duration-unit",
        choices=("auto", "iterations", "seconds"),
        help="of PAL's traces; auto (default): iterations where the model's iteration time is known",
    )


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--nodes", metavar="N", help="number of nodes")
    group.add_argument("--gpus-per-node", metavar="K", help="GPUs of each node")
    group.add_argument("--machine", metavar="NAME", help="what each node is like, such as dgx-a100")
    group.add_argument("--topology", metavar="DIR", help="topology files of real nodes, instead")
    group.add_argument("--nodes-per-leaf", metavar="N", help="nodes below one switch (default: no leaves)")
    group.add_argument("--leaves-per-pod", metavar="N", help="leaves below one switch (default: one pod)")
    group.add_argument(
        "--scores",
        action="append",
        metavar="[CLASS=]FILE",
        help="a score table, ours or PAL's; or CLASS=FILE, measured runs to draw the class's scores from",
    )


def _add_rules(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--order", choices=("fifo", "las", "srtf", "srsf", "slurm"), help="order of the waiting jobs")
    group.add_argument(
        "--limits", metavar="HOW", help="time limits: trace (default), drawn, or a factor of the run time"
    )
    group.add_argument(
        "--bf-interval", metavar="S", help="slurm, berthd: seconds between backfill passes (default: 30)"
    )
    group.add_argument("--locality", metavar="LEVEL[@TIME]", help="slurm, berthd: all jobs wait for this level")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="print JSON instead of the table")
    group.add_argument(
        "--placements", default="", metavar="FILE", help="write the GPUs of each job: job,start_s,end_s,gpus"
    )
    group.add_argument("--history", metavar="FILE", help="write the run for `berth web`")
    group.add_argument("--report", metavar="FILE", help="write a page with table and plots (HTML)")


def _add_runs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seed",
        dest="seeds",
        action="append",
        metavar="N|A:B",
        help="seed, or seeds A to B, of what is drawn; repeatable (default: 1:8; 1 where nothing is shifted)",
    )
    group.add_argument(
        "--shift",
        metavar="S",
        help="submit each job up to S seconds sooner or later, drawn by the seed (600)",
    )
    group.add_argument("--workers", type=int, default=0, metavar="N", help="processes (default: one a CPU)")


def run(args: argparse.Namespace) -> int:
    """Runs a study."""
    if find_spec("numpy") is None:
        raise UsageError("berth simulate needs numpy: install slurm-berth[simulate], or the package berth-simulate")
    study = _study(args)
    if study.apart and (args.placements or study.history):
        raise UsageError("--placements and history take one trace; leave apart out")
    return _run_here(study, args)


def _study(args: argparse.Namespace) -> Study:
    from policy.simulate.study import (  # noqa: PLC0415
        DRAWS,
        FLAT_SLURM,
        KEYS,
        PLAIN_SLURM,
        SHIFT_S,
        Study,
        check,
        checked,
        read_file,
    )

    values: dict[str, Any] = {}
    for path in args.study:
        values |= read_file(path)
    given = {key: value for key in KEYS if (value := getattr(args, key, None)) not in (None, [])}
    values |= {key: checked(key, value, f"--{key.replace('_', '-')}") for key, value in given.items()}
    if not values.get("traces"):
        raise UsageError("name a trace to play: berth simulate TRACE --nodes N --gpus-per-node K")
    policies = _POLICIES[values.get("mode", "slurm")]
    if FLAT_SLURM in policies and (values.get("nodes_per_leaf") or values.get("fabric")):
        policies = (*PLAIN_SLURM, *policies[1:])
    values.setdefault("policies", policies)
    # The published rounds and the files of one run are of the trace as it is.
    as_it_is = values.get("mode") == "pal-rounds" or bool(args.placements or values.get("history"))
    values.setdefault("shift", 0.0 if as_it_is else SHIFT_S)
    values.setdefault("seeds", tuple(range(1, DRAWS + 1)) if values["shift"] else (1,))
    study = Study(**values)
    check(study)
    return study


def _run_here(study: Study, args: argparse.Namespace) -> int:
    from policy.simulate.report.files import placement_files  # noqa: PLC0415
    from policy.simulate.report.progress import RunProgress  # noqa: PLC0415
    from policy.simulate.study import cells  # noqa: PLC0415
    from policy.simulate.sweep import prepare, recorded, run_all  # noqa: PLC0415

    every = cells(study)
    placements = placement_files(args.placements, every) if args.placements else {}
    parts = [replace(study, traces=(path,)) for path in study.traces] if study.apart else [study]
    traces = [prepare(part) for part in parts]
    rows: list[Summary] = []
    notes: Counter[str] = Counter()
    for part, trace in zip(parts, traces, strict=True):
        with RunProgress(len(every)) as progress:
            rows += run_all(part, every, trace, args.workers, placements, progress.tick)
        notes.update(trace.notes)
    rows += [found for part, trace in zip(parts, traces, strict=True) if (found := recorded(part, trace))]
    _show(study, rows, notes, sum(len(trace.jobs) for trace in traces), args)
    return 0


def _show(study: Study, rows: Sequence[Summary], notes: Mapping[str, int], jobs: int, args: argparse.Namespace) -> None:
    from policy.simulate.report.files import as_json, write_text  # noqa: PLC0415
    from policy.simulate.report.table import as_text  # noqa: PLC0415
    from policy.simulate.report.verdict import verdict  # noqa: PLC0415

    for text, count in notes.items():
        sys.stderr.write(f"berth simulate: {count} jobs {text}\n")
    if args.report:
        from policy.simulate.report.html import page  # noqa: PLC0415

        write_text(args.report, page(study, rows, notes, jobs))
    sys.stdout.write(as_json(rows) if args.json else f"{verdict(rows)}\n\n{as_text(rows)}")
