"""Plays seeds: `python -m tests.world --seed 7 --events 400`, or fresh ones for some `--minutes`."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import secrets
import sys
import time
from collections import Counter

from tests.world.checks import ViolationError
from tests.world.script import drawn
from tests.world.shrink import as_test, shrunk
from tests.world.world import DeterministicWorld, say


def main() -> int:
    """Exit status 1 where a seed found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, or the first of --seeds")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds in a row")
    parser.add_argument("--events", type=int, default=300, help="steps of each script")
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
    say(f"world: seeds from {first} on, {options.events} steps each")
    if profile:
        profile.enable()
    while (time.monotonic() < until) if until else (seed < first + options.seeds):
        with DeterministicWorld() as world:
            try:
                world.play(drawn(seed, options.events))
            except ViolationError as problem:
                failed += 1
                say(f"world: seed {seed}: {problem}")
                if not options.no_shrink:
                    world.replaced.undo()
                    say(as_test(seed, shrunk(drawn(seed, options.events), problem), problem))
        happened += world.happened
        faults += Counter(world.door.counted)
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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
