# SPDX-License-Identifier: Apache-2.0
"""Runs berthd as it is, with a clock around the planner's looks and passes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from policy.daemon.answer.answerer import Answerer
from policy.daemon.answer.server import Server, planner_command
from policy.daemon.passes import planning
from policy.daemon.passes.planner import Planner
from policy.site.config import load

TIMES = "BERTH_LOAD_TIMES"
"""The environment variable that names a file. A line for each pass has its begin, its look, the look's processor, all
of it, the processor of the rest, jobs, and writes that the pass before left.

The processor's seconds are those of the pass without its look: beside other work the clock says more about that work.
"""


def berthd() -> int:
    """The answering process, whose planner is the timed one."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load.timed")
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args()
    config = load(options.config, must_exist=True)
    command = planner_command(options.config, "libslurm", config.socket)
    at = command.index("-m")
    command[at + 1 : at + 2] = ["tests.bench.load.timed", "planner"]
    Server(Answerer(config, "load", os.getpid()), config.socket, command).run()
    return 0


def planner(arguments: list[str]) -> int:
    """The planning process."""
    one_pass, look = Planner.one_pass, Planner._look
    looked, looked_processor = [0.0], [0.0]

    def timed_look(self: Planner, **how: Any) -> Any:
        began, used = time.monotonic(), time.thread_time()
        try:
            return look(self, **how)
        finally:
            looked[0], looked_processor[0] = time.monotonic() - began, time.thread_time() - used

    with Path(os.environ[TIMES]).open("a", encoding="utf-8") as out:

        def timed_pass(self: Planner, **how: Any) -> None:
            began, used = time.monotonic(), time.thread_time()
            left = len(self._updates.waiting)
            one_pass(self, **how)
            took, used = time.monotonic() - began, time.thread_time() - used - looked_processor[0]
            jobs = len(self._looks.reading.jobs) if self._looks.reading else 0
            out.write(f"{began} {looked[0]} {looked_processor[0]} {took} {used} {jobs} {left}\n")
            out.flush()

        Planner._look = timed_look  # type: ignore[method-assign]
        Planner.one_pass = timed_pass  # type: ignore[method-assign]
        return planning.main(arguments)


if __name__ == "__main__":
    sys.exit(planner(sys.argv[2:]) if sys.argv[1:2] == ["planner"] else berthd())
