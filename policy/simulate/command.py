"""The command `berth simulate`, which tries policies on a trace: a published one or a cluster's own accounting."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from policy.formats.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.simulate.report.summary import Summary
    from policy.simulate.study import Study

__all__ = ["register"]

_POLICIES = {
    "slurm": ("slurm", "packed", "berth"),
    "berthd": ("slurm", "berth"),
    "pal-rounds": ("packed-sticky", "pm-first", "pal", "berth"),
}
"""The policies that are compared where none is named."""

_EXAMPLES = """\
what would Berth have done last month?
  sacct -aPX -S 2026-10-01 -E 2026-11-01 \\
    -o JobID,User,Account,JobName,Submit,Eligible,Start,End,ElapsedRaw,State,AllocTRES,ReqTRES,Timelimit,NNodes > oct
  berth simulate oct --nodes 64 --gpus-per-node 8 --report oct.html

More in docs/simulate.md.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `simulate` to the parser of `berth`."""
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
    parser.add_argument("trace", nargs="*", metavar="TRACE", help="trace files (.gz too), several as one; - for stdin")
    parser.add_argument(
        "--mode",
        choices=("slurm", "berthd", "pal-rounds"),
        default="slurm",
        help="slurm: Slurm's scheduling; berthd: with berthd's own code and the time that each step takes; "
        "pal-rounds: the model of PAL's artifact (default: %(default)s)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="repeatable: berth, slurm, packed, pm-first, pal, random, pinned-random, or a site's own; "
        "berthd: berth by berthd's own code; "
        "packed-sticky and random-sticky leave running jobs where they are",
    )
    parser.add_argument(
        "--duration-unit",
        choices=("auto", "iterations", "seconds"),
        default="auto",
        help="of PAL's traces; auto: iterations where the model's iteration time is known",
    )


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--nodes", type=_count, default=0, metavar="N", help="number of nodes")
    group.add_argument("--gpus-per-node", type=_count, default=0, metavar="K", help="GPUs of each node")
    group.add_argument("--machine", default="", metavar="NAME", help="what each node is like, such as dgx-a100")
    group.add_argument("--topology", default="", metavar="DIR", help="topology files of real nodes, instead")
    group.add_argument(
        "--fabric", default="", metavar="FILE", help="leaves and pods of these nodes: Slurm's topology.conf or .yaml"
    )
    group.add_argument(
        "--nodes-per-leaf", type=_count, default=0, metavar="N", help="nodes below one switch (default: no leaves)"
    )
    group.add_argument(
        "--leaves-per-pod", type=_count, default=0, metavar="N", help="leaves below one switch (default: one pod)"
    )
    group.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="[CLASS=]FILE",
        help="a score table, ours or PAL's; or CLASS=FILE, measured runs to draw the class's scores from",
    )
    group.add_argument(
        "--profile-way",
        choices=("one-run", "median", "nodes"),
        default="nodes",
        help="how GPUs are drawn from measured runs: one run each, a GPU's median, or whole nodes (default)",
    )
    group.add_argument(
        "--locality-penalty",
        default="",
        metavar="P",
        help="how much longer a job takes on several nodes: P, LEVEL=P,..., or a file (default: 1.7 in pal-rounds, "
        "else published measurements)",
    )
    group.add_argument("--events", default="", metavar="FILE", help="slow nodes: node,start,end,factor (or down)")


def _add_rules(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--order", choices=("fifo", "las", "srtf", "srsf", "slurm"), default="", help="order of the waiting jobs"
    )
    group.add_argument(
        "--backfill",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let every policy skip jobs that do not fit (default: in slurm yes, in pal-rounds no)",
    )
    group.add_argument("--move-cost", type=_cost, default=0.0, metavar="S", help="seconds that a move costs a job")
    group.add_argument(
        "--round", type=_cost, default=360.0, metavar="S", help="pal-rounds: seconds of a round (default: %(default)g)"
    )
    group.add_argument(
        "--repeat",
        type=_cost,
        default=None,
        metavar="JOBS",
        help="pal-rounds: play the trace again after its end, with so many jobs an hour (default: 2; 0: not)",
    )
    group.add_argument(
        "--limits", default="trace", metavar="HOW", help="time limits: trace, drawn, or a factor of the run time"
    )
    group.add_argument(
        "--models",
        choices=("trace", "drawn"),
        default="trace",
        help="drawn: jobs of several GPUs get models that lose more or less time by distance",
    )
    group.add_argument(
        "--durations",
        choices=("limit", "predicted", "true"),
        default="limit",
        help="slurm: run times that plans count with",
    )
    group.add_argument(
        "--bf-interval",
        type=_cost,
        default=30.0,
        metavar="S",
        help="slurm, berthd: seconds between backfill passes (default: %(default)g)",
    )
    group.add_argument(
        "--slurm",
        choices=("24.11", "25.05", "25.11", "26.05"),
        default="24.11",
        help="berthd: release whose backfill is simulated",
    )
    group.add_argument(
        "--locality", default="", metavar="LEVEL[@TIME]", help="slurm, berthd: all jobs wait for this level"
    )
    group.add_argument(
        "--weigh-waits",
        action="store_true",
        help="slurm: a job waits for its level no longer than the level can save it",
    )
    group.add_argument(
        "--quotas", default="", metavar="FILE", help="slurm: most GPUs of each account; lines of account,gpus"
    )
    group.add_argument(
        "--borrow", type=_cost, default=0.0, metavar="S", help="slurm: seconds for which a job may run beyond its quota"
    )
    group.add_argument(
        "--movable",
        type=_cost,
        default=0.0,
        metavar="PART",
        help="slurm, berthd: share of the jobs, 0 to 1, that may be moved while they run",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="print JSON instead of the table")
    group.add_argument("--csv", metavar="FILE", help="write the figures as CSV")
    group.add_argument(
        "--placements", default="", metavar="FILE", help="write the GPUs of each job: job,start_s,end_s,gpus"
    )
    group.add_argument("--history", type=_path, default="", metavar="FILE", help="write the run for `berth web`")
    group.add_argument("--report", metavar="FILE", help="write a page with table and plots (HTML)")


def _add_runs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seed",
        action="append",
        metavar="N|A:B",
        help="seed, or seeds A to B, of what is drawn; repeatable (default: 1)",
    )
    group.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="OPTION=A,B,...",
        help="try each of these values; repeatable: all combinations",
    )
    group.add_argument("--workers", type=_count, default=0, metavar="N", help="processes (default: one a CPU)")
    group.add_argument("--submit", metavar="DIR", help="run as a job array on this cluster, results in DIR")
    group.add_argument("--sbatch", default="", metavar="OPTIONS", help="options for sbatch, as one word")
    group.add_argument("--gather", metavar="DIR", help="show the results of --submit")
    group.add_argument("--work", metavar="DIR", help=argparse.SUPPRESS)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return value


def _path(text: str) -> str:
    """Returns a path that means the same in a job of `--submit`."""
    return str(Path(text).absolute()) if text else ""


def _cost(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def run(args: argparse.Namespace) -> int:
    """Runs a study here, submits it, works on a part of it, or shows its results."""
    if find_spec("numpy") is None:
        raise UsageError("berth simulate needs numpy: install slurm-berth[simulate], or the package berth-simulate")
    if args.work:
        return _work(args.work)
    if args.gather:
        return _gather(args)
    study = _study(args)
    if args.submit:
        from policy.simulate.submit import submit  # noqa: PLC0415

        print(submit(study, args.submit, args.placements, shlex.split(args.sbatch)))
        return 0
    return _run_here(study, args)


def _study(args: argparse.Namespace) -> Study:
    from policy.simulate.study import Study, check, parse_seeds, parse_sweep  # noqa: PLC0415

    if not args.trace:
        raise UsageError("name a trace to play: berth simulate TRACE --nodes N --gpus-per-node K")
    sweeps = [parse_sweep(text) for text in args.sweep]
    twice = {name for name, _ in sweeps if sum(name == other for other, _ in sweeps) > 1}
    if twice:
        raise UsageError(f"--sweep {min(twice)} is given twice; write all values in one list")
    study = Study(
        traces=tuple(args.trace),
        policies=tuple(dict.fromkeys(args.policy or _POLICIES[args.mode])),
        seeds=parse_seeds(args.seed or ["1"]),
        scores=tuple(args.scores),
        sweeps=tuple(sweeps),
        **{name: getattr(args, name) for name in _AS_THEY_ARE},
    )
    check(study)
    return study


_AS_THEY_ARE = (
    *("mode", "duration_unit", "nodes", "gpus_per_node", "machine", "topology", "fabric", "nodes_per_leaf"),
    *("leaves_per_pod", "profile_way", "locality_penalty", "move_cost", "events", "order", "backfill", "round"),
    *(
        "repeat",
        "limits",
        "models",
        "durations",
        "bf_interval",
        "slurm",
        "locality",
        "weigh_waits",
        "quotas",
        "borrow",
        "movable",
        "history",
    ),
)
"""Options that have the same name in a study."""


def _run_here(study: Study, args: argparse.Namespace) -> int:
    from policy.simulate.report.files import placement_files  # noqa: PLC0415
    from policy.simulate.report.progress import RunProgress  # noqa: PLC0415
    from policy.simulate.study import cells  # noqa: PLC0415
    from policy.simulate.sweep import prepare, recorded, run_all  # noqa: PLC0415

    trace = prepare(study)
    every = cells(study)
    placements = placement_files(args.placements, every) if args.placements else {}
    with RunProgress(len(every)) as progress:
        rows = list(run_all(study, every, trace, args.workers, placements, progress.tick))
    really = recorded(study, trace)
    _show(study, [*rows, *([really] if really else [])], trace.notes, len(trace.jobs), args)
    return 0


def _gather(args: argparse.Namespace) -> int:
    from policy.simulate.submit import gather, open_folder  # noqa: PLC0415
    from policy.simulate.sweep import prepare, recorded  # noqa: PLC0415

    folder = open_folder(args.gather)
    rows, missing = gather(folder)
    if not rows:
        raise UsageError(f"{args.gather}: none of {missing} runs has ended yet; its logs folder shows what they say")
    trace = prepare(folder.study)
    really = recorded(folder.study, trace)
    _show(folder.study, [*rows, *([really] if really else [])], trace.notes, len(trace.jobs), args)
    if missing:
        sys.stderr.write(f"berth simulate: {missing} runs are missing; --submit them again with the same options\n")
    return 1 if missing else 0


def _work(folder: str) -> int:
    from policy.simulate.submit import work  # noqa: PLC0415

    task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not task.isdigit():
        raise UsageError("--work is for tasks of the array that --submit made; use --submit")
    work(folder, int(task))
    return 0


def _show(study: Study, rows: Sequence[Summary], notes: Mapping[str, int], jobs: int, args: argparse.Namespace) -> None:
    from policy.simulate.report.files import as_csv, as_json, write_text  # noqa: PLC0415
    from policy.simulate.report.table import as_text  # noqa: PLC0415
    from policy.simulate.report.verdict import verdict  # noqa: PLC0415

    for text, count in notes.items():
        sys.stderr.write(f"berth simulate: {count} jobs {text}\n")
    if args.csv:
        write_text(args.csv, as_csv(rows))
    if args.report:
        from policy.simulate.report.html import page  # noqa: PLC0415

        write_text(args.report, page(study, rows, notes, jobs))
    sys.stdout.write(as_json(rows) if args.json else f"{verdict(rows)}\n\n{as_text(rows)}")
