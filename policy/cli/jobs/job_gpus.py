# SPDX-License-Identifier: Apache-2.0
"""The command `berth job-gpus JOBID`: all GPUs of a job on this node, for scripts: Slurm names only the last one."""

import argparse
import os
from pathlib import Path
from typing import Any

from policy.cli.output import tell
from policy.formats.errors import BerthError, UsageError


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "job-gpus", help="print a job's GPUs on this node by number, such as 0,3 (for scripts)"
    )
    parser.add_argument("job", metavar="JOBID", help="a job's number")
    parser.add_argument("--node", help="another node than this one")
    parser.add_argument("--uuids", action="store_true", help="UUIDs; only of jobs that share GPUs, and on their node")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the job's GPUs in one line; the line is empty if it has none."""
    if not (options.job.isascii() and options.job.isdigit()):
        raise UsageError(f"{options.job!r} is not a job's number; berth job-gpus takes one, such as 1234")
    from prolog_epilog.errors import NodeError  # noqa: PLC0415 - the same
    from prolog_epilog.node.paths import Paths  # noqa: PLC0415 - the same
    from prolog_epilog.settings import config  # noqa: PLC0415 - the same
    from prolog_epilog.tenants import share_file  # noqa: PLC0415 - keeps `berth --help` fast

    job = int(options.job)
    try:
        share = None if options.node else share_file.read(Paths(), job)
        if options.uuids:
            if share is None or not share.uuids:
                raise BerthError(f"job {job} shares no GPU on this node; nvidia-smi -L tells the UUIDs of the others")
            words = share.uuids
        elif share is not None and share.minors:
            words = tuple(map(str, share.minors))
        else:
            words = tuple(map(str, asked_gpus(job, options.node, config.load(config.find(os.environ)).scontrol)))
    except NodeError as problem:
        raise BerthError(str(problem)) from None
    gpus = {"uuids": words} if options.uuids else {"gpus": [int(word) for word in words]}
    tell(options, {"job": job, **gpus}, ",".join(words))
    return 0


def asked_gpus(job: int, node: str | None, scontrol: str) -> tuple[int, ...]:
    """Returns the GPUs' numbers from Slurm; for another node their positions, as its device files are not here."""
    from prolog_epilog import chain  # noqa: PLC0415 - keeps `berth --help` fast
    from prolog_epilog.job.slurm import Scontrol  # noqa: PLC0415

    found = Scontrol(scontrol, os.environ.get("SLURM_CONF", "")).gpus(job, node or _this_node())
    return found if node else chain.indices(found, chain.minors())


def _this_node() -> str:
    """Returns this node's name: slurmd's own in a Prolog, else the host's name."""
    return os.environ.get("SLURMD_NODENAME") or Path("/proc/sys/kernel/hostname").read_text().strip().split(".")[0]
