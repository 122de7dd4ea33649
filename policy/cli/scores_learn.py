"""The command `berth scores learn`, which adds a job's own straggler scores to the record of step times."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from policy.cli.job_gpus import asked_gpus
from policy.formats.errors import BerthError, UsageError
from policy.site.config import config_path, load
from topology.files import load_directory
from topology.model import Gpu, Machine


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    learn = commands.add_parser(
        "learn", help="add what a job itself told of its slow ranks to the record of step times"
    )
    learn.add_argument("job", metavar="JOBID", help="number of a job of which Slurm still knows the GPUs")
    learn.add_argument(
        "--from", dest="source", required=True, metavar="FILE", help="JSON or log of nvidia-resiliency-ext"
    )
    learn.add_argument("--class", dest="app_class", default="compute", metavar="CLASS", help="default: %(default)s")
    learn.add_argument("--steps", type=Path, metavar="FILE", help="the record (default: as berth.conf says)")
    learn.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from policy.cli.why_slow import times_of_files  # noqa: PLC0415 - keeps `berth --help` fast
    from policy.history.told_scores import learned  # noqa: PLC0415 - needs numpy
    from policy.site.step_records import append  # noqa: PLC0415 - the same

    if not (args.job.isascii() and args.job.isdigit()):
        raise UsageError(f"{args.job!r} is not a job's number; berth scores learn takes one, such as 1234")
    config = load(config_path())
    record = args.steps or config.steps
    if record is None:
        raise UsageError("name the record by --steps, or let [berthd] steps in berth.conf name it")
    machines = load_directory(config.topology_dir, lambda _: None) if config.topology_dir.is_dir() else {}
    times = times_of_files([args.source])
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    report = learned(
        times, args.job, args.app_class, now, lambda node: _gpus_on(machines.get(node), node, int(args.job))
    )
    try:
        append(record, [report])
    except OSError as problem:
        raise BerthError(f"{record} cannot be written: {problem.strerror}; run this as SlurmUser") from problem
    print(f"{record}: {len(report.ranks)} ranks of job {args.job}")
    return 0


def _gpus_on(machine: Machine | None, node: str, job: int) -> Sequence[Gpu]:
    if machine is None:
        raise BerthError(f"no topology file for {node}; berth topo discover makes one")
    held = _held(job, node)
    return [gpu for gpu in machine.gpus if gpu.position in held]


def _held(job: int, node: str) -> Sequence[int]:
    """Returns the positions of a job's GPUs on a node, as Slurm tells them."""
    from prolog_epilog import config  # noqa: PLC0415 - keeps `berth --help` fast
    from prolog_epilog.errors import NodeError  # noqa: PLC0415 - the same

    try:
        return asked_gpus(job, node, config.load(config.find(os.environ)).scontrol)
    except NodeError as problem:
        raise BerthError(str(problem)) from None
