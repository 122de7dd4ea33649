# SPDX-License-Identifier: Apache-2.0
"""Plays seeds: `python -m tests.world --seed 7 --events 400`, or fresh ones for some `--minutes`."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import secrets
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial

from tests.world.checks import ViolationError
from tests.world.kinds import KINDS, NODES, WorldKind
from tests.world.nodes.script import STEPS as OF_NODES
from tests.world.script import NODES as CHANGES_OF_NODES
from tests.world.script import PEOPLE, STEPS
from tests.world.shrink import as_test, shrunk
from tests.world.submit import KINDS as JOBS
from tests.world.submit import TIERS
from tests.world.whole.world import WholeWorld
from tests.world.world import DeterministicWorld, say


def main() -> int:
    """Exit status 1 where a seed found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, or the first of --seeds")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds in a row")
    parser.add_argument(
        "--events", type=int, help="steps of each script (300 for the cluster, 200 for nodes and the whole)"
    )
    parser.add_argument(
        "--only", choices=[one.name for one in KINDS], help="the cluster with berthd, the nodes, or both in one"
    )
    parser.add_argument(
        "--kind", help="steps, jobs or changes that come often in the cluster and the whole: kill,array"
    )
    parser.add_argument("--minutes", type=float, help="play fresh seeds for so long")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first seed that finds something")
    parser.add_argument("--no-shrink", action="store_true", help="print no short script")
    parser.add_argument("--profile", action="store_true", help="tell where the time goes")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else secrets.randbelow(10**9)
    until = time.monotonic() + options.minutes * 60 if options.minutes else None
    profile = cProfile.Profile() if options.profile else None
    began, seed, failed = time.monotonic(), first, 0
    happened: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    met: Counter[str] = Counter()
    kinds = [one for one in KINDS if options.only in {None, one.name}]
    if options.kind:
        words = _words(options.kind)
        kinds = [replace(one, drawn=partial(one.drawn, words=words)) for one in kinds if one is not NODES]
    say(f"world: seeds from {first} on")
    if profile:
        profile.enable()
    while (time.monotonic() < until) if until else (seed < first + options.seeds):
        for kind in kinds:
            counted = happened, faults, met
            failed += _play(kind, seed, options.events or kind.events, counted, shrink=not options.no_shrink)
        seed += 1
        if failed and not options.keep_going:
            break
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    took = time.monotonic() - began
    total = happened.total()
    say(f"world: {seed - first} seeds, {total} events, {took:.0f} s, {total / took:.0f} events/s, {failed} failed")
    say("world: events " + ", ".join(f"{name} {count}" for name, count in happened.most_common()))
    say("world: faults of calls " + ", ".join(f"{name} {count}" for name, count in faults.most_common()))
    if met:
        say("world: whole " + ", ".join(f"{name} {count}" for name, count in met.most_common()))
    return 1 if failed else 0


def _words(text: str) -> frozenset[str]:
    """The kinds of steps, jobs and changes that a list names."""
    words = frozenset(text.split(","))
    known = {*dict(STEPS), *dict(OF_NODES), *JOBS, *TIERS, *PEOPLE, *CHANGES_OF_NODES}
    if unknown := words - known:
        sys.exit(f"world: no kind is called {', '.join(sorted(unknown))}; the kinds are {', '.join(sorted(known))}")
    return words


def _play(kind: WorldKind, seed: int, events: int, counted: tuple[Counter[str], ...], *, shrink: bool) -> bool:
    """Play a seed; True where it found something."""
    happened, faults, met = counted
    found = None
    with kind.made() as world:
        try:
            world.play(kind.drawn(seed, events))
        except ViolationError as problem:
            found = problem
        happened += world.happened
        if isinstance(world, DeterministicWorld):
            faults += Counter(world.door.counted)
        if isinstance(world, WholeWorld):
            met += world.met
    if found is not None:
        say(f"world: seed {seed} of the {kind.name}: {found}")
        if shrink:
            say(as_test(seed, shrunk(kind.drawn(seed, events), found, of=kind), found, kind))
    return found is not None


if __name__ == "__main__":
    sys.exit(main())
