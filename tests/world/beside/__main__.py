# SPDX-License-Identifier: Apache-2.0
"""Plays drawn scripts on the model and on a real slurmctld: `python -m tests.world.beside --slurm 26.05 --seeds 20`."""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Iterator

from tests.world.beside.draw import drawn
from tests.world.beside.kept import KEPT
from tests.world.beside.play import SETTLES, BothSides, DifferenceError
from tests.world.beside.real import RealSlurm, own_cluster
from tests.world.beside.submit import USERS
from tests.world.script import Step
from tests.world.world import say


def main() -> int:
    """Exit status 1 where a script differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.world.beside", description=__doc__)
    parser.add_argument("--slurm", default="26.05", help="24.11 or 26.05; a cluster of its own is started")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14, help="of each script")
    parser.add_argument("--minutes", type=float, help="end after so long")
    parser.add_argument("--script", help="a list of steps in place of seeds")
    parser.add_argument("--kept", action="store_true", help="the kept scripts in place of seeds")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--wait", type=float, default=SETTLES, help="seconds for which both may disagree")
    options = parser.parse_args()
    with own_cluster(options.slurm, keep=options.keep) as real:
        return _play(real, options)


def _scripts(options: argparse.Namespace) -> Iterator[tuple[str, list[Step]]]:
    if options.script:
        yield "the script", ast.literal_eval(options.script)
    elif options.kept:
        yield from KEPT.items()
    else:
        for seed in range(options.seed, options.seed + options.seeds):
            yield f"seed {seed}", drawn(seed, options.steps)


def _play(real: RealSlurm, options: argparse.Namespace) -> int:
    began, played, steps, commands, differ = time.monotonic(), 0, 0, 0, 0
    for name, script in _scripts(options):
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            break
        sides, problem = both(real, options.wait), ""
        try:
            sides.play(script)
        except DifferenceError as found:
            problem = str(found)
        real.clean()
        played, steps, commands = played + 1, steps + sides.steps, commands + sides.commands
        if problem:
            differ += 1
            lines = "".join(f"    {step!r},\n" for step in script[: sides.steps])
            say(f"beside: {name}: {problem}\n  [\n{lines}  ]")
    took = time.monotonic() - began
    what = f"{played} scripts, {steps} steps, {commands} commands, {differ} differ, {took:.0f} s"
    say(f"beside: Slurm {options.slurm}: {what}")
    return 1 if differ else 0


def both(real: RealSlurm, wait: float = SETTLES) -> BothSides:
    """Two sides that begin anew."""
    users = {user: int(real.bash(f"id -u {user}")) for user in USERS}
    return BothSides(real, users, real.perform(["scontrol", "version"]).out.split()[-1], wait)


if __name__ == "__main__":
    sys.exit(main())
