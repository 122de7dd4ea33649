# SPDX-License-Identifier: Apache-2.0
"""Explores all short scripts of a small protocol, breadth first: `python -m tests.world.explore --depth 5`.

Each state is reached by playing its script anew, with the code of berthd itself. Two scripts that lead to one state
are followed once. The first script that goes wrong is therefore one of the shortest.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass, field

from policy.daemon.passes.planner import Planner
from tests.world.berthd import BerthdProcesses
from tests.world.checks import ViolationError
from tests.world.script import Step
from tests.world.world import DeterministicWorld, say

START: tuple[Step, ...] = (("site", 128, 0, 2, 0, 2), ("start",), ("pass", 1), ("hear",))
"""One site with relocations, Slurm 26.05, at most two jobs at a time."""

PROTOCOL: tuple[Step, ...] = (
    ("submit", "host", 3, 20, "COMPLETED", 0),
    ("submit", "guest", 3, 20, "COMPLETED", 0),
    ("pass", 1),
    ("hear",),
    ("write", 50),
    ("sched", 0),
    ("ends", 0),
    ("epilog", 0),
    ("deliver", 0, "keep"),
    ("epilog-ends", 0),
    ("guard", "evict", 0),
    ("kill", 0),
    ("kill", 1),
    ("start",),
    ("people", "requeue", 0),
    ("node", "down", 0),
    ("node", "resume", 0),
    ("fault-of-change", "lost", 0),
)
"""The steps of hook, planner, notice, seat eviction, Slurm and failover; each may come at any place of a script."""


@dataclass
class ExploredStates:
    """Tells what an exploration has met."""

    played: int = 0
    calmed: int = 0
    by_depth: list[int] = field(default_factory=list)
    problem: str = ""
    script: tuple[Step, ...] = ()
    whole: bool = True
    """False where the time ran out."""


def fingerprint(world: DeterministicWorld) -> str:
    """Returns the state as text: Slurm's records, calls to come, notices, and what both processes of berthd know.

    A time becomes its distance from now, so that a state that only comes later is the same. Of berthd's memory the
    parts that decide are here, without their times: two states that differ elsewhere are followed once only.
    """
    cluster, processes, door = world.cluster, world.processes, world.door
    now = int(world.clock.time())
    jobs = [vars(job) | {"ends_on": sorted(job.ends_on)} for job in cluster.jobs.values()]
    nodes = [(one.name, sorted(one.flags), sorted(one.held.items()), sorted(one.epilogs)) for one in
             cluster.nodes.values()]  # fmt: skip
    calls = sorted((number - door.changes, tuple(kinds)) for number, kinds in door.faults_of_changes.items())
    notices = [(now - int(one.sent), one.life == processes.life, *one[2:]) for one in world.network]
    given = [(nonce, now - int(at), sorted(places)) for nonce, (at, places) in sorted(world.given.items())]
    known = (_of_planner(processes.planner), _of_answerer(processes), processes.waiting, sorted(processes.seen))
    text = repr((jobs, nodes, calls, notices, given, known))
    return _MOMENT.sub(lambda moment: str(int(float(moment[0]) - now)), text)


_MOMENT = re.compile(r"\b1[67]\d{8}(?:\.\d+)?\b")
"""Matches seconds since 1970, as the world's clock has them."""


def _of_planner(planner: Planner | None) -> tuple[object, ...]:
    if planner is None:
        return ()
    reading, evictions = planner._looks.reading, planner._evictions
    read = (
        [(job.id, job.state, job.nodes, job.gpus, job.required, job.plan) for job in reading.jobs] if reading else None
    )
    nodes = reading.nodes if reading else None
    return (
        *(
            read,
            nodes,
            sorted(map(str, planner._updates.waiting)),
            sorted(planner._updates.moved),
            planner._answerer.stale,
        ),
        *(sorted(evictions._going), sorted(evictions._failed), sorted(planner._heard.guards._closed)),
        *(sorted(planner._moving.relocations.under_way), sorted(planner._heard.degraded._met), planner._looks.problem),
    )


def _of_answerer(processes: BerthdProcesses) -> tuple[object, ...]:
    answerer = processes.answerer
    return () if answerer is None else (sorted(answerer._memory._held), answerer._problem, answerer._book is not None)


def explore(depth: int, *, seconds: float, calm: bool, alphabet: tuple[Step, ...] = PROTOCOL) -> ExploredStates:
    """Plays every script of up to `depth` steps; with `calm` each new state must also come to a good end."""
    found, until = ExploredStates(), time.monotonic() + seconds
    known: set[int] = set()
    layer: list[tuple[Step, ...]] = [()]
    for _ in range(depth):
        following = []
        for before in layer:
            for step in alphabet:
                if time.monotonic() > until:
                    found.whole = False
                    return found
                script = (*START, *before, step)
                with DeterministicWorld() as world:
                    try:
                        world.play(script, calm=False)
                        found.played += 1
                        state = hash(fingerprint(world))
                        if state in known:
                            continue
                        known.add(state)
                        following.append((*before, step))
                        if calm:
                            world.calm_down()
                            found.calmed += 1
                    except ViolationError as problem:
                        found.problem, found.script = str(problem), script
                        return found
        found.by_depth.append(len(following))
        layer = following
    return found


def main() -> int:
    """Exit status 1 where a script goes wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.world.explore", description=__doc__)
    parser.add_argument("--depth", type=int, default=3, help="steps after the start")
    parser.add_argument("--minutes", type=float, default=15.0, help="end after so long, whole or not")
    parser.add_argument("--safety-only", action="store_true", help="do not play each state to a good end")
    options = parser.parse_args()
    began = time.monotonic()
    found = explore(options.depth, seconds=options.minutes * 60, calm=not options.safety_only)
    say(
        f"explore: depth {len(found.by_depth)}, new states by depth {found.by_depth}, {found.played} scripts, "
        f"{found.calmed} played to their end, {time.monotonic() - began:.0f} s{'' if found.whole else ', time ran out'}"
    )
    if found.problem:
        say(f"explore: {found.problem}\n" + "\n".join(f"    {step}," for step in found.script))
    return 1 if found.problem else 0


if __name__ == "__main__":
    sys.exit(main())
