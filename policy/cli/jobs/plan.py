# SPDX-License-Identifier: Apache-2.0
"""The command `berth plan -- SBATCH-ARGUMENTS`: the place that a job would get now, and why; nothing is submitted."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from policy.cli.output import print_json, print_table
from policy.formats.errors import BerthError, SlurmError, UsageError
from policy.slurm.command_failures import not_started

_SECONDS = 60
_SPEAKS = "--retry=0"
"""A flag that changes no place. Without a flag of Berth's, `sbatch --test-only` prints only Slurm's own lines."""
_OURS = re.compile(r"^sbatch: (?:error: )?(berth: .*|--.*)$")
_SLURMS = re.compile(
    r"^sbatch: Job \d+ to start at (\S+)(?: a)? using (\d+) processors on nodes (\S+) in partition (\S+)$"
)


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "plan",
        help="where a job would go now, and why, without submitting it",
        usage="berth plan [--json] -- SBATCH-ARGUMENTS",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="-- SBATCH-ARGUMENTS",
        help="as for sbatch, such as --gpus=2 train.sh",
    )
    parser.set_defaults(run=run, mend=right_call)


def right_call(arguments: Sequence[str]) -> str:
    """Returns the sentence for a call without `--`, with the right call."""
    words = [word for word in arguments[arguments.index("plan") + 1 :] if word != "--json"]
    json = ["--json"] if "--json" in arguments else []
    line = shlex.join(["berth", "plan", *json, "--", *words])
    return f"sbatch's arguments stand behind -- here, so that they are not taken for Berth's own; call: {line}"


def run(options: argparse.Namespace) -> int:
    """Runs Slurm's own dry run, so that the plugin, berthd and Slurm get the real request."""
    words = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if not words:
        raise UsageError("berth plan needs what sbatch would be called with, such as: berth plan -- --gpus=2 job.sh")
    berth, slurm, rest, code = _dry_run(words)
    if any(f"unrecognized option '{_SPEAKS}'" in line for line in rest):
        raise BerthError("sbatch has no options of Berth on this host; an admin adds spank_berth.so to plugstack.conf")
    if code:
        raise BerthError("; ".join(berth or rest) or f"sbatch --test-only ended with {code}")
    if options.json:
        print_json({"berth": berth, "slurm": slurm, "other": rest})
        return 0
    print_table([("berth", text) for text in berth] or [("berth", "no GPUs asked, or berthd has no part in it")])
    if slurm:
        print_table(
            [("slurm", f"would start it at {slurm['start']} on {slurm['nodes']}, partition {slurm['partition']}")]
        )
    for line in rest:
        sys.stderr.write(f"{line}\n")
    return 0


def _dry_run(words: list[str]) -> tuple[list[str], dict[str, str], list[str], int]:
    """Returns Berth's lines, Slurm's expected start, all other lines, and the exit status."""
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", _SPEAKS, *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL if "--wrap" in words or any(w.startswith("--wrap=") for w in words) else None,
            check=False,
        )
    except OSError as problem:
        raise not_started("sbatch", problem) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"sbatch --test-only did not answer within {_SECONDS} s; is slurmctld up?") from None
    berth, rest, slurm = [], [], {}
    for line in done.stderr.splitlines():
        if match := _OURS.match(line):
            berth.append(match[1].removeprefix("berth: "))
        elif found := _SLURMS.match(line):
            slurm = dict(zip(("start", "processors", "nodes", "partition"), found.groups(), strict=True))
        elif line:
            rest.append(line)
    return berth, slurm, rest, done.returncode
